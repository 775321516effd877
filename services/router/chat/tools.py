"""Functions that a model may call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    description: str = ""
    # A JSON schema of its arguments, an object's; None: it takes none.
    parameters: Mapping[str, Any] | None = None
    # Whether a call's arguments must match the schema, whatever the model would write.
    strict: bool = False


class ToolMode(Enum):
    """How free the model is in calling: not at all, as it likes, at least one call, or exactly the named function."""

    NONE = auto()
    AUTO = auto()
    REQUIRED = auto()
    NAMED = auto()


@dataclass(frozen=True, slots=True)
class ToolChoice:
    mode: ToolMode = ToolMode.AUTO
    # With ToolMode.NAMED.
    name: str = ""
    # Whether one message may hold several calls.
    parallel: bool = True


AS_IT_LIKES = ToolChoice()
