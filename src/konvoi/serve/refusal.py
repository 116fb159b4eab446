"""Every answer that is no success has one form: {"error": {"problem": ..., "hint": ...}}."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse


class Problem(BaseModel):
    model_config = ConfigDict(title="Problem")

    problem: str = Field(description="What is wrong, for people.")
    hint: str = Field(description="What to do about it; may be empty.")


class ErrorAnswer(BaseModel):
    error: Problem


class Refusal(Exception):
    """Ends a request with these words."""

    def __init__(self, status: int, problem: str, hint: str = "", headers: Mapping[str, str] | None = None) -> None:
        super().__init__(problem)
        self.status, self.problem, self.hint, self.headers = status, problem, hint, dict(headers or {})

    @property
    def content(self) -> ErrorAnswer:
        return ErrorAnswer(error=Problem(problem=self.problem, hint=self.hint))

    def response(self) -> JSONResponse:
        return JSONResponse(self.content.model_dump(), self.status, self.headers)
