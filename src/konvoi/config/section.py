"""The base of every table in a recipe."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A typed table: no unknown keys, no change after checking; the docstring below a field explains it."""

    # No setting means anything as NaN or infinity.
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)
