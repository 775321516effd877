"""docs/apis.md names the versions of the clients that the tests install."""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[3]


def installed() -> set[tuple[str, str]]:
    """By name and version, what development's environment and the clients' have."""
    files = [ROOT / "constraints.txt", *(ROOT / "tests" / "e2e" / "clients").glob("requirements*.txt")]
    pins = "\n".join(path.read_text() for path in files)
    packages = (ROOT / "tests/e2e/clients/node/package.json", ROOT / "examples/javascript/package.json")
    modules = [pair for path in packages for pair in json.loads(path.read_text())["dependencies"].items()]
    return {*re.findall(r"^([\w-]+)==(\S+)$", pins, re.MULTILINE), *modules}


def test_the_table_names_what_is_installed() -> None:
    section = (ROOT / "docs" / "apis.md").read_text().partition("## Clients that are tested")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([^`]+)` \| (\S+) \|[^|]*\| `(\S+?)`", section, re.MULTILINE)
    assert {"openai", "anthropic", "@anthropic-ai/sdk", "ollama"} <= {name for name, _, _ in rows}
    assert {(name, version) for name, version, _ in rows} <= installed()
    assert all((ROOT / test).exists() for _, _, test in rows)
