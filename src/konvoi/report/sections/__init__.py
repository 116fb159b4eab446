"""The sections of a report, one file each, found by listing this folder.

    TITLE: str                                      the heading
    ORDER: int                                      its place on the page, the smallest first
    def render(run: RunRecord) -> list[Block]       nothing where the run has nothing to say of it

A module whose name starts with `_` is no section.
"""
