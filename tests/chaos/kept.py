"""Rounds of faults kept in a file, so that they can be carried out again after the way in which seeds are drawn has
changed. `kept/` has the storm of `make test`, and the rounds of each bug that a storm has found."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tests.chaos.draw import Planned, Round

KEPT = Path(__file__).parent / "kept"


def write(path: Path, rounds: Sequence[Round]) -> None:
    path.write_text(json.dumps([asdict(one) for one in rounds], indent=1) + "\n", encoding="utf-8")


def read(path: Path) -> list[Round]:
    """Raises KeyError, TypeError or ValueError if the file has something else than rounds."""
    return [
        Round(tuple(Planned(**fault) for fault in one["faults"]), float(one["rest_s"]))
        for one in json.loads(path.read_text(encoding="utf-8"))
    ]
