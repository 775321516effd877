"""The protos are fit for other languages, and `make proto-check` notices where they stop being so."""

from __future__ import annotations

import importlib
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.fakes.tools import needs
from tests.fakes.waiting import HANG_S

ROOT = Path(__file__).parents[2]
PROTOS = sorted((ROOT / "protos" / "quire").glob("*/v1/*.proto"))


@pytest.mark.parametrize("proto", PROTOS, ids=lambda proto: proto.stem)
def test_a_proto_says_where_its_go_java_and_csharp_code_goes(proto: Path) -> None:
    module = ".".join(proto.relative_to(ROOT / "protos").with_suffix("").parts) + "_pb2"
    options = importlib.import_module(module).DESCRIPTOR.GetOptions()

    path, _, package = options.go_package.partition(";")
    assert path.startswith("quire.local/protos/quire/")
    assert package.isidentifier()
    assert options.java_package.startswith("quire.")
    assert options.java_multiple_files
    assert options.csharp_namespace.startswith("Quire.")


@needs((ROOT / ".venv-proto" / "bin" / "buf").exists(), "buf (make proto-check)")
def test_the_check_names_what_lacks_a_comment_and_what_breaks_clients(tmp_path: Path) -> None:
    protos = tmp_path / "protos"
    shutil.copytree(ROOT / "protos" / "quire", protos / "quire")
    changed = protos / "quire" / "inference" / "v1" / "model.proto"
    text = changed.read_text()
    for old, new in (
        ("  // Other names of the same model.\n", ""),
        ("uint32 vocab_size = 4;", "uint64 vocab_size = 4;"),
        ("option java_multiple_files = true;\n", ""),
    ):
        assert text.count(old) == 1
        text = text.replace(old, new)
    changed.write_text(text)

    result = subprocess.run(["protos/check.sh", protos], cwd=ROOT, capture_output=True, text=True, timeout=HANG_S)

    assert result.returncode == 1
    assert 'Field "aliases" should have a non-empty comment for documentation.' in result.stdout
    assert 'Field "4" with name "vocab_size" on message "ModelInfo" changed type from "uint32" to "uint64".' in (
        result.stdout
    )
    assert "java_multiple_files" in result.stdout
