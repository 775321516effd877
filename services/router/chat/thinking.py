"""Chat template arguments that control whether and how much a model thinks, and the fields for a message's
reasoning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

# Effort levels, with OpenAI's names.
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


def thought(message: dict[str, Any], reasoning: str) -> None:
    """Appends `reasoning` to an assistant's message, in both fields that chat templates read."""
    message["reasoning_content"] = message["reasoning"] = message.get("reasoning", "") + reasoning


def thinking_kwargs(enabled: bool | None, effort: str | None = None) -> dict[str, Any] | None:
    """Returns the chat template's arguments for thinking; None if the client sets none. Model families name these
    arguments differently: Qwen's templates read `enable_thinking`, DeepSeek's and Granite's `thinking`, gpt-oss'
    `reasoning_effort`. A template ignores the names that it does not know."""
    kwargs: dict[str, Any] = {}
    if enabled is not None:
        kwargs = {"enable_thinking": enabled, "thinking": enabled}
    if effort is not None:
        kwargs["reasoning_effort"] = effort
    return kwargs or None


def may_think(kwargs: Mapping[str, Any] | None) -> bool:
    """Returns whether a template's arguments allow the model to think."""
    said = kwargs or {}
    return said.get("enable_thinking") is not False and said.get("thinking") is not False


def merged_kwargs(
    enabled: bool | None, effort: str | None, given: Mapping[str, Any] | None
) -> Mapping[str, Any] | None:
    """Returns `given`, the client's arguments for the template, with the arguments of `thinking_kwargs` added.
    Arguments that the client has set keep their values."""
    given = given or {}
    # If the client turns thinking on or off itself, under one name, `enabled` must not say the opposite under another.
    if "enable_thinking" in given or "thinking" in given:
        enabled = None
    return {**(thinking_kwargs(enabled, effort) or {}), **given} or None


def effort_kwargs(effort: str | None, kwargs: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Returns `kwargs`, the client's arguments for the template, with the effort (a ReasoningEffort) added. The effort
    "none" turns thinking off, every other one turns it on. Arguments that the client has set keep their values."""
    return kwargs if effort is None else merged_kwargs(effort != "none", effort, kwargs)
