"""Presets: options for a purpose, under one name. Every option that is set anywhere else takes precedence."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shared.config import find, option

# Options by preset, as keys of a configuration file. The longest sequence is a limit, so that models and caches that
# hold less start, too.
PRESETS: Mapping[str, Mapping[str, float | int]] = types.MappingProxyType(
    {
        "throughput": {"gpu-memory-utilization": 0.95, "max-num-seqs": 512, "max-auto-model-len": 4096},
        "latency": {"gpu-memory-utilization": 0.85, "max-num-seqs": 32, "max-auto-model-len": 8192},
        "long-context": {
            "gpu-memory-utilization": 0.92,
            "max-num-seqs": 16,
            "max-auto-model-len": 131_072,
            "max-num-batched-tokens": 4096,
        },
    }
)
# Options that decide about the same thing as one of a preset, as field names.
_INSTEAD = {"max-auto-model-len": "max_model_len"}


@dataclass(frozen=True, slots=True)
class PresetConfig:
    preset: str | None = option(
        None,
        "Options for a purpose: many requests at once, short waits, or long prompts. The start prints what it sets; "
        "other options take precedence.",
        choices=tuple(PRESETS),
    )


def expand(
    name: str, flags: Mapping[str, Any], environment: Mapping[str, str], file: Mapping[str, Any]
) -> tuple[dict[str, Any], str]:
    """Returns the file's options with those of a preset that are not set anywhere, and a sentence for the user. The
    arguments are those of shared.config.build."""
    added = {
        key: value
        for key, value in PRESETS[name].items()
        if find(key.replace("-", "_"), flags, environment, file) is None
        and find(_INSTEAD.get(key, key.replace("-", "_")), flags, environment, file) is None
    }
    words = ", ".join(f"--{key} {value}" for key, value in added.items()) or "nothing"
    others = [f"--{key}" for key in PRESETS[name] if key not in added]
    rest = f"; your own options decide about {', '.join(others)}" if others else ""
    return {**added, **file}, f"--preset {name} sets {words}{rest}"
