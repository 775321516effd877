"""Building, loading, and saying honestly why a fallback is in use."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import torch

from services.worker.ops.cpu import build, library
from services.worker.ops.reference import ReferenceOps
from services.worker.startup.create_ops import create_ops, fallback_reason

CPU = torch.device("cpu")


@pytest.fixture
def fresh_cache() -> None:
    library.load.cache_clear()


def has_compiler() -> bool:
    try:
        return bool(build.find_compiler())
    except build.BuildError:
        return False


@pytest.mark.skipif(
    not has_compiler(), reason="the compiler that built the kernels was there for the installation only"
)
def test_one_library_per_level_is_built_and_none_needs_an_openmp_runtime(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What is optimized takes ten seconds more to compile, and needs the same libraries.
    monkeypatch.setattr(build, "FLAGS", tuple("-O0" if flag == "-O3" else flag for flag in build.FLAGS))
    built = build.build(tmp_path)
    assert [path.name for path in built] == [build.library_name(level) for level in build.levels()]
    assert sorted(tmp_path.iterdir()) == sorted(built)
    for path in built:
        assert not re.search(rb"lib[a-z]*omp[a-z0-9]*\.so", path.read_bytes())


def test_a_compiler_that_fails_is_reported_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "false")
    with pytest.raises(build.BuildError):
        build.build(tmp_path)
    assert not list(tmp_path.iterdir())


def test_libraries_of_the_same_sources_are_not_compiled_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> list[str]:
        raise build.BuildError("compiles")

    for name in (*build.HEADERS, *build.SOURCES):
        shutil.copy(build.SOURCE_DIRECTORY / name, tmp_path)
    monkeypatch.setattr(build, "SOURCE_DIRECTORY", tmp_path)
    monkeypatch.setattr(build, "find_compiler", fails)
    paths = [tmp_path / build.library_name(level) for level in build.levels()]
    for path in paths:
        path.write_text(f"of {build.source_digest()}")
    assert build.build_if_older() == paths
    for stale in ("of other sources", None):
        paths[0].unlink() if stale is None else paths[0].write_text(stale)
        with pytest.raises(build.BuildError, match="compiles"):
            build.build_if_older()


def test_zigs_names_of_processors_are_its_own() -> None:
    flags = ("-march=armv8-a", "-mavx2", "-march=x86-64")
    assert build.spelled(flags, ["python", "-m", "ziglang", "cc"]) == ["-mcpu=generic", "-mavx2", "-march=x86_64"]
    assert build.spelled(flags, ["gcc"]) == list(flags)


def test_kernels_are_used_for_float32_on_cpus(levels: list[str]) -> None:
    ops = create_ops(CPU, torch.float32)
    assert (ops.name, ops.batch_invariant) == ("cpu", True)
    assert fallback_reason(CPU, torch.float32) is None


def test_other_dtypes_fall_back_and_say_so() -> None:
    ops = create_ops(CPU, torch.bfloat16)
    assert isinstance(ops, ReferenceOps)
    assert not ops.batch_invariant
    assert "float32" in (fallback_reason(CPU, torch.bfloat16) or "")


@pytest.mark.usefixtures("fresh_cache")
def test_missing_kernels_fall_back_and_say_how_to_build_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "SOURCE_DIRECTORY", tmp_path)
    reason = fallback_reason(CPU, torch.float32) or ""
    assert "cpu.build" in reason
    assert "\n" not in reason
    assert isinstance(create_ops(CPU, torch.float32), ReferenceOps)


@pytest.mark.usefixtures("fresh_cache")
def test_kernels_from_other_sources_are_refused(levels: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "source_digest", lambda: "0" * 16)
    assert "was compiled from other sources" in (fallback_reason(CPU, torch.float32) or "")


@pytest.mark.usefixtures("fresh_cache")
def test_a_file_that_is_no_library_is_one_line_not_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "SOURCE_DIRECTORY", tmp_path)
    (tmp_path / build.library_name(next(iter(build.levels())))).write_bytes(b"no library")
    assert "does not load" in (fallback_reason(CPU, torch.float32) or "")
