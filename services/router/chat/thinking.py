"""What chat templates are told of thinking: whether and how hard a model is to think, and what it thought before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

# OpenAI's words.
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


def thought(message: dict[str, Any], reasoning: str) -> None:
    """Has an assistant's message say what it had thought before it, under both names that templates ask for."""
    message["reasoning_content"] = message["reasoning"] = message.get("reasoning", "") + reasoning


def thinking_kwargs(enabled: bool | None, effort: str | None = None) -> dict[str, Any] | None:
    """Arguments of a chat template; None where the client says nothing. Families name the switch differently: Qwen's
    templates ask for `enable_thinking`, DeepSeek's and Granite's for `thinking`, gpt-oss' for `reasoning_effort`. A
    template heeds those that it knows."""
    kwargs: dict[str, Any] = {}
    if enabled is not None:
        kwargs = {"enable_thinking": enabled, "thinking": enabled}
    if effort is not None:
        kwargs["reasoning_effort"] = effort
    return kwargs or None


def may_think(kwargs: Mapping[str, Any] | None) -> bool:
    """Whether a template's arguments leave it to the model."""
    said = kwargs or {}
    return said.get("enable_thinking") is not False and said.get("thinking") is not False


def effort_kwargs(effort: str | None, kwargs: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """A template's arguments, with how much the model is to reason (a ReasoningEffort) where they do not say it."""
    if effort is None:
        return kwargs
    said: dict[str, Any] = {"reasoning_effort": effort}
    if effort == "none":
        said["enable_thinking"] = False
    return said | dict(kwargs or {})
