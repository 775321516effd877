"""`python -m deploy.dashboards` writes what Grafana, Prometheus and readers get from this package and from the catalog
of metrics; with --check, it only says what is out of date."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from deploy.dashboards.files import files

ROOT = Path(__file__).parents[2]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m deploy.dashboards", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file is out of date")
    arguments = parser.parse_args()
    stale = [name for name, text in files().items() if not _is(ROOT / name, text)]
    if arguments.check:
        for name in stale:
            print(f"{name} is out of date: run python -m deploy.dashboards", file=sys.stderr)
        return 1 if stale else 0
    for name in stale:
        (ROOT / name).write_text(files()[name], encoding="utf-8")
    return 0


def _is(path: Path, text: str) -> bool:
    return path.exists() and path.read_text(encoding="utf-8") == text


if __name__ == "__main__":
    sys.exit(main())
