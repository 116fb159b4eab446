"""A trained model as a small folder that runs anywhere: no torch, no run directory, x86-64 and arm64.

Here is what uses a bundle; konvoi/export makes one from a run.
"""
