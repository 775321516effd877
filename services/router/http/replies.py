"""Types of the APIs' JSON answers: their base class, and the parts that several APIs share."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

Seconds = Annotated[int, Field(description="Unix time in seconds.")]


class Reply(BaseModel):
    """Base class of the types of JSON answers. The OpenAPI document is made from these types, and tests check answers
    against them. For speed, most answers are written as JSON directly, without objects of these types. A field that an
    answer can leave out has a default."""

    model_config = ConfigDict(strict=True, extra="forbid")


def may_lack(description: str, **extra: Any) -> Any:
    """Declares a field that is left out if it has no value; it is never null."""
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
