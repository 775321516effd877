"""Replies as JSON: their base, and the parts that several APIs share."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

Seconds = Annotated[int, Field(description="Unix time in seconds.")]


class Reply(BaseModel):
    """A JSON value that an API answers with: for the document, and for the tests that hold answers against it. Answers
    themselves are mostly written without it, as they are too many. A field that may be left out has a default."""

    model_config = ConfigDict(strict=True, extra="forbid")


def may_lack(description: str, **extra: Any) -> Any:
    """A field that is left out where there is nothing to say, and never null."""
    return Field(None, description=description, **extra)


class ErrorDetails(Reply):
    """The error in OpenAI's format."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorReply(Reply):
    error: ErrorDetails


class TopLogprob(Reply):
    token: str
    logprob: float = Field(description="Natural logarithm of the probability; at least -9999.")
    bytes: list[int] = Field(description="UTF-8 bytes of the token, which may be part of a character.")


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]
