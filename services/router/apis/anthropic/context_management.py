"""`context_management`: edits of the conversation before the model reads it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field, Tag

from services.router.apis.anthropic.blocks import ThinkingBlock
from services.router.apis.anthropic.messages import Turn
from services.router.errors import ApiError, ErrorKind
from services.router.http import Body, union

_CLEAR_THINKING = "clear_thinking_20251015"


class KeptThinking(Body):
    type: Literal["thinking_turns", "all"] = Field(
        description="`thinking_turns`: `value` turns keep their reasoning; `all`: all turns do."
    )
    value: int | None = Field(
        None, ge=1, lt=2**31, description="With `thinking_turns`: number of last turns that keep their reasoning."
    )


def _keep_kind(value: object) -> str | None:
    return "#string" if isinstance(value, str) else "#object" if isinstance(value, dict) else None


class ContextEdit(Body):
    type: str = Field(description=f"`{_CLEAR_THINKING}`; others are refused.")
    keep: (
        Annotated[
            Annotated[Literal["all"], Tag("#string")] | Annotated[KeptThinking, Tag("#object")],
            union(_keep_kind, "'all' or an object with a 'type'"),
        ]
        | None
    ) = Field(None, description="How many of the assistant's last turns keep their reasoning. Default: 1.")

    @property
    def num_kept(self) -> int | None:
        """Number of the assistant's turns with reasoning, counted from the last, that keep it. None: all of them."""
        if self.keep == "all" or (isinstance(self.keep, KeptThinking) and self.keep.type == "all"):
            return None
        return (self.keep.value if isinstance(self.keep, KeptThinking) else None) or 1


class ContextManagement(Body):
    edits: list[ContextEdit] | None = Field(
        None, max_length=16, description="Edits that remove parts of the conversation."
    )

    def thoughtless(self, turns: Sequence[Turn]) -> frozenset[int]:
        """Returns the indices of the assistant's turns whose reasoning is removed. Raises ApiError."""
        thinking = [index for index, turn in enumerate(turns) if _thinks(turn)]
        cleared: set[int] = set()
        for index, edit in enumerate(self.edits or ()):
            if edit.type != _CLEAR_THINKING:
                param = f"context_management.edits[{index}].type"
                message = f"Invalid '{param}': the edit '{edit.type[:64]}' is not supported by this server."
                raise ApiError(ErrorKind.UNSUPPORTED, message, param)
            if edit.num_kept is not None:
                cleared.update(thinking[: -edit.num_kept])
        return frozenset(cleared)


def _thinks(turn: Turn) -> bool:
    return (
        turn.role == "assistant"
        and not isinstance(turn.content, str)
        and any(isinstance(block, ThinkingBlock) for block in turn.content)
    )
