"""Presets: options for a purpose, under one name. Every option that is set anywhere else takes precedence."""

from __future__ import annotations

import types
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from shared.config import find, option
from shared.discovery import PartOptions

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
# The only options of a preset that a scheduler takes if it is started by itself. The others it gets from its workers.
OF_SCHEDULERS = frozenset({"max-num-batched-tokens"})
# Options that decide about the same thing as one of a preset, as field names.
_INSTEAD = {"max-auto-model-len": "max_model_len"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PresetOptions(PartOptions):
    """Options of schedulers and workers, for which there are presets."""

    preset: str | None = option(
        None,
        "Options for a purpose: many requests at once, short waits, or long prompts. The start prints what it sets; "
        "other options take precedence.",
        choices=tuple(PRESETS),
    )


class Preset:
    """Adds the options of the chosen preset to those of a configuration file. `note` says which ones were added; it is
    empty without a preset."""

    def __init__(self, keys: Collection[str] | None = None) -> None:
        """`keys`: names of the options that the part takes from a preset. None: all."""
        self._keys = keys
        self.note = ""

    def expand(
        self, flags: Mapping[str, Any], environment: Mapping[str, str], file: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Returns the file's options, and those of the preset that are not set anywhere. Takes the arguments of
        shared.config.build, which refuses presets that do not exist."""
        chosen = find("preset", flags, environment, file)
        name = "" if chosen is None else str(chosen[1])
        keys = self._keys
        options = {key: value for key, value in PRESETS.get(name, {}).items() if keys is None or key in keys}
        if not options:
            return file
        added = {
            key: value
            for key, value in options.items()
            if find(key.replace("-", "_"), flags, environment, file) is None
            and find(_INSTEAD.get(key, key.replace("-", "_")), flags, environment, file) is None
        }
        words = ", ".join(f"--{key} {value}" for key, value in added.items()) or "nothing"
        others = [f"--{key}" for key in options if key not in added]
        rest = f"; your own options decide about {', '.join(others)}" if others else ""
        self.note = f"--preset {name} sets {words}{rest}"
        return {**added, **file}
