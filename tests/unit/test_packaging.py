"""What the documents and the metadata say of installing Quire."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

import quire
from quire.cli import installation

ROOT = Path(__file__).parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def test_no_text_installs_quire_from_an_index_where_it_is_not() -> None:
    documents = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").rglob("*Dockerfile")]
    sources = [path for part in ("quire", "services", "shared", "examples") for path in (ROOT / part).rglob("*.py")]
    found = [
        f"{path}: {line}"
        for path in (*documents, *sources)
        for line in path.read_text().splitlines()
        if re.search(r"""pip install (-\S+ )*['"]?quire(\[|['"\s`]|$)""", line)
    ]
    assert found == []


def test_the_stubs_generators_are_an_extra_with_exact_versions() -> None:
    pins = dict(requirement.split("==") for requirement in EXTRAS["proto"])
    (stub,) = ROOT.glob("quire/worker/v1/worker_pb2_grpc.py")
    assert f"GRPC_GENERATED_VERSION = '{pins['grpcio-tools']}'" in stub.read_text()
    assert not re.search(r"grpcio-tools=", (ROOT / "protos" / "generate.sh").read_text())


def test_in_a_source_tree_the_hint_installs_the_tree() -> None:
    assert installation.install_command("local") == f"pip install -e '{ROOT}[local]'"


@pytest.mark.parametrize("is_there", [True, False])
def test_elsewhere_the_hint_names_the_wheel(is_there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "site-packages" / "quire" / "__init__.py"
    monkeypatch.setattr(quire, "__file__", str(package))
    wheel = tmp_path / "some where" / "quire-1-py3-none-any.whl"

    class Installed:
        def read_text(self, name: str) -> str:
            return f'{{"url": "{wheel.as_uri()}", "archive_info": {{}}}}'

    monkeypatch.setattr(installation, "distribution", lambda name: Installed())
    if is_there:
        wheel.parent.mkdir()
        wheel.touch()
    expected = f"'{wheel}[local]'" if is_there else "'quire-VERSION.whl[local]'"
    assert installation.install_command("local") == f"pip install {expected}"
