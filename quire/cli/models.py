"""`quire models`: the architectures that Quire runs, and how."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from services.worker.models import MEANINGS, list_supported
from shared.config import option, resolve


@dataclass(frozen=True, slots=True)
class ModelsConfig:
    name: str = option("", "Lists only architectures whose names contain this, in any case.", positional=True)
    json: bool = option(False, "Print JSON.")


def main(argv: Sequence[str]) -> int:
    config = resolve(
        ModelsConfig,
        argv,
        prog="quire models",
        description="Lists the architectures of models that Quire runs, as config.json names them.",
    )
    found = [one for one in list_supported() if config.name.lower() in one.architecture.lower()]
    if config.json:
        print(json.dumps([asdict(one) for one in found], indent=2))
        return 0
    if not found:
        print(f"quire models: no architecture has {config.name!r} in its name", file=sys.stderr)
        return 1
    width = max(len(one.architecture) for one in found)
    for one in found:
        print(f"{one.architecture:<{width}}  {one.kind}")
    print()
    for kind in dict.fromkeys(one.kind for one in found):
        print(f"{kind}: {MEANINGS[kind]}")
    print("`architectures` in a model's config.json names its architecture. docs/models.md says how each is tested.")
    return 0
