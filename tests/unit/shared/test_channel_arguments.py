"""Every channel argument in the tree has a name that the installed grpc knows; it ignores others without a word."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from grpc._cython import cygrpc  # type: ignore[attr-defined]

ROOT = Path(__file__).parents[3]
FOLDERS = ("services", "shared", "quire", "deploy", "benchmarks", "tests", "examples")
# A name in the library's binary ends with a zero byte, so the beginning of a name does not count as one.
KNOWN = frozenset(
    name.decode() for name in re.findall(rb"grpc\.[a-z0-9_.]+(?=\0)", Path(str(cygrpc.__file__)).read_bytes())
)


def channel_arguments(source: str) -> Iterator[str]:
    """First elements of pairs such as ("grpc.keepalive_time_ms", 10_000), and keys of dicts. Names of gRPC's own
    packages and services begin alike; they have a version."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Tuple) and len(node.elts) == 2:
            names: list[ast.expr | None] = [node.elts[0]]
        elif isinstance(node, ast.Dict):
            names = list(node.keys)
        else:
            continue
        for name in names:
            value = name.value if isinstance(name, ast.Constant) else None
            if isinstance(value, str) and value.startswith("grpc.") and not re.search(r"\.v[0-9]", value):
                yield value


def in_the_tree() -> dict[str, list[str]]:
    """By name, the files that use it."""
    found: dict[str, list[str]] = {}
    for path in sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")):
        source = path.read_text()
        if path != Path(__file__) and "grpc." in source:
            for name in channel_arguments(source):
                found.setdefault(name, []).append(str(path.relative_to(ROOT)))
    return found


def test_grpc_knows_every_channel_argument() -> None:
    used = in_the_tree()
    assert len(used) > 10
    assert {"grpc.keepalive_time_ms", "grpc.http2.max_ping_strikes"} <= used.keys()
    assert {name: files for name, files in used.items() if name not in KNOWN} == {}


@pytest.mark.parametrize(
    ("name", "is_known"),
    [
        ("grpc.http2.min_ping_interval_without_data_ms", True),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", False),
        ("grpc.keepalive_time", False),
    ],
)
def test_the_binary_tells_names_apart(name: str, is_known: bool) -> None:
    assert (name in KNOWN) == is_known
    assert list(channel_arguments(f"options = [({name!r}, 1)]")) == [name]
