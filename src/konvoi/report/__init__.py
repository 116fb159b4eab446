"""A run as a page for people: content as blocks, one file a section, three writers over the same blocks."""
