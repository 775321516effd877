"""Whether and how hard a model is to think before it answers, as chat templates are told."""

from __future__ import annotations

from typing import Any


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
