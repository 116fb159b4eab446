"""A run while it goes on: only what is new is read, and shown on a terminal or as lines. Never imports torch."""
