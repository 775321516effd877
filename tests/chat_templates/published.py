"""Chat templates to try: ours, which have the shapes of published ones, and published ones where they are at hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

SOURCES = Path(__file__).parent / "sources"
# Beside the repository, on machines that have them.
PUBLISHED = Path(__file__).parents[2].parent / "shared/templates/chat_template_goldens.json"

# As `chat_template` in a tokenizer_config.json: a template, or a list of named ones.
Source = str | list[dict[str, str]]


def ours() -> dict[str, Source]:
    found: dict[str, Source] = {path.stem: path.read_text() for path in sorted(SOURCES.glob("*.jinja"))}
    for directory in sorted(path for path in SOURCES.iterdir() if path.is_dir()):
        found[directory.name] = [
            {"name": path.stem, "template": path.read_text()} for path in sorted(directory.glob("*.jinja"))
        ]
    return found


def published() -> dict[str, Source]:
    if not PUBLISHED.exists():
        return {}
    groups = json.loads(PUBLISHED.read_text())
    return {name: case["chat_template"] for group in groups.values() for name, case in group.items()}


def in_directory(directory: Path) -> dict[str, Source]:
    """Every .jinja file below a directory, by its path in it."""
    return {str(path.relative_to(directory)): path.read_text() for path in sorted(directory.rglob("*.jinja"))}


def distinct(sources: Mapping[str, Source]) -> dict[str, Source]:
    """The sources without those that equal an earlier one, but for whitespace at the ends."""
    first: dict[str, str] = {}
    for name, source in sources.items():
        first.setdefault(json.dumps(source.strip() if isinstance(source, str) else source), name)
    return {name: sources[name] for name in first.values()}
