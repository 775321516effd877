"""Checks single sampling parameters with the router's rules, so that a program gets the error where it sets the value,
not where it sends the request."""

from __future__ import annotations

from typing import Any

from services.router.errors import ApiError
from services.router.parameters import (
    MAX_LOGIT_BIAS,
    MAX_STOP_TOKEN_IDS,
    SamplingParams,
    check_ranges,
    check_stop_strings,
)

_MAX_N = 128
_MAX_ENTRIES = {"logit_bias": MAX_LOGIT_BIAS, "stop_token_ids": MAX_STOP_TOKEN_IDS}


def check_range(name: str, value: Any) -> None:
    """Checks a value that already has its parameter's type. Limits that depend on the model are left to the router.
    Raises ValueError."""
    if name in ("n", "max_tokens") and value < 1:
        raise ValueError("use at least 1")
    if name == "n" and value > _MAX_N:
        raise ValueError(f"use at most {_MAX_N}")
    if name == "truncate_prompt_tokens" and (value == 0 or value < -1):
        raise ValueError("use -1 or at least 1")
    if name in _MAX_ENTRIES and len(value) > _MAX_ENTRIES[name]:
        raise ValueError(f"at most {_MAX_ENTRIES[name]} tokens may be listed")
    try:
        if name == "stop":
            check_stop_strings((value,) if isinstance(value, str) else tuple(value), name)
        elif name == "logit_bias":
            check_ranges(SamplingParams(logit_bias=tuple(value.items())))
        elif name in SamplingParams.__dataclass_fields__:
            check_ranges(SamplingParams(**{name: value}))
    except ApiError as error:
        raise ValueError(error.message.partition(": ")[2]) from None
