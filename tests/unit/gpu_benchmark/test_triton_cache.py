"""What one machine has compiled, the next one finds: in another directory, from archives of a limited size."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu import triton_cache
from tests.bare_tree import ROOT

pytest.importorskip("triton")

# Compiles two of our kernels for an H200 and says for each whether it was in the cache.
COMPILE = """
from triton import knobs
from services.worker.ops.triton import segments, token_ids
from services.worker.ops.triton.compile import build

knobs.compilation.listener = lambda cache_hit, **_: print("hit" if cache_hit else "compiled")
for module in (segments, token_ids):
    assert build(next(module.variants()), 90).asm["cubin"]
"""


def script(cache: Path, *command: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"PYTHONPATH": str(ROOT), "TRITON_CACHE_DIR": str(cache)}
    result = subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.thorough
def test_a_packed_cache_spares_the_next_machine_the_compiler(tmp_path: Path) -> None:
    first, second, packed = tmp_path / "first", tmp_path / "second", tmp_path / "packed"
    assert script(first, "-c", COMPILE).split() == ["compiled"] * 2
    (archive,) = script(first, "-m", "benchmarks.gpu.triton_cache", "pack", str(packed)).split()
    first.rename(tmp_path / "gone")  # the paths that Triton has noted lead nowhere
    assert "2 kernels unpacked" in script(second, "-m", "benchmarks.gpu.triton_cache", "unpack", str(packed))
    assert script(second, "-c", COMPILE).split() == ["hit"] * 2
    stored = sum(path.stat().st_size for path in (tmp_path / "gone").rglob("*") if path.is_file())
    assert Path(archive).stat().st_size < stored / 4


@pytest.mark.thorough
def test_a_large_cache_is_cut_into_archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, packed = tmp_path / "cache", tmp_path / "packed"
    monkeypatch.setattr(triton_cache, "location", lambda: cache)
    for index in range(12):
        (cache / f"kernel{index}").mkdir(parents=True)
        (cache / f"kernel{index}" / "k.cubin").write_bytes(os.urandom(1 << 20))
        (cache / f"kernel{index}" / "k.ttir").write_bytes(b"x")
    archives = triton_cache.pack(packed, max_bytes=8 << 20)
    assert [path.name for path in archives] == [
        f"triton-cache-{number}.tar.xz" for number in range(1, len(archives) + 1)
    ]
    assert 1 < len(archives) <= triton_cache.MAX_ARCHIVES
    assert all(path.stat().st_size <= 8 << 20 for path in archives)
    restored = tmp_path / "restored"
    monkeypatch.setattr(triton_cache, "location", lambda: restored)
    triton_cache.unpack(packed)
    for index in range(12):
        name = f"kernel{index}/k.cubin"
        assert (restored / name).read_bytes() == (cache / name).read_bytes()
    assert not list(restored.rglob("*.ttir"))


def test_a_missing_cache_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="triton-cache"):
        triton_cache.unpack(tmp_path)
