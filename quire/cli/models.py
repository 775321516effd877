"""`quire models`: the architectures that Quire runs, and how."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from services.worker.models import MEANINGS, find_unsupported, letters, list_supported
from shared.config import option, resolve


@dataclass(frozen=True, slots=True)
class ModelsConfig:
    name: str = option(
        "", "Lists only architectures whose names contain this. Case and punctuation do not matter.", positional=True
    )
    json: bool = option(False, "Print JSON.")


FOOTER = """
`architectures` in a model's config.json names its architecture; `quire estimate MODEL` reads it. docs/models.md says
how each is tested. --model-impl transformers also runs decoders that are not listed, but no test compares them."""


def main(argv: Sequence[str]) -> int:
    config = resolve(
        ModelsConfig,
        argv,
        prog="quire models",
        description="Lists the architectures of models that Quire runs, as config.json names them.",
    )
    found = [one for one in list_supported() if letters(config.name) in letters(one.architecture)]
    unsupported = find_unsupported(config.name)
    if config.json:
        print(json.dumps([asdict(one) for one in found], indent=2))
    if not found:
        sentence = _refusals(unsupported) or (
            f"no architecture has {config.name!r} in its name; `quire estimate MODEL` says how a model runs"
        )
        print(f"quire models: {sentence}", file=sys.stderr)
        return 1
    if config.json:
        return 0
    width = max(len(one.architecture) for one in found)
    for one in found:
        print(f"{one.architecture:<{width}}  {one.kind}")
    print()
    for kind in dict.fromkeys(one.kind for one in found):
        print(f"{kind}: {MEANINGS[kind]}")
    if unsupported:
        print(f"not supported: {_refusals(unsupported)}")
    print(FOOTER)
    return 0


def _refusals(unsupported: Mapping[str, str]) -> str:
    by_reason: dict[str, list[str]] = {}
    for kind, reason in unsupported.items():
        by_reason.setdefault(reason, []).append(kind)
    return "; ".join(f"{', '.join(kinds)}: {reason}" for reason, kinds in by_reason.items())
