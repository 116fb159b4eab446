"""Hosts from what already names them: one file for each source, with hosts(...) -> list[Host].

What the user should know beside the hosts is handed to `note`, a sentence each. A name with a leading `_` is no source.
"""
