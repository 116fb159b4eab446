"""Konvoi trains translation and image models over a few ordinary machines, and knows why a run is fast or slow."""

__version__ = "0.1.0"
