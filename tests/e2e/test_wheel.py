"""The wheel: built from the sources, installed in an environment of its own, and used without a compiler.

What Quire depends on comes from the environment of these tests; `make wheel-fresh` installs all of it anew.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from quire.cli.demo import PROMPT
from services.worker.ops.cpu import build
from tests.e2e.conftest import ROOT
from tests.fakes.waiting import HANG_S

PARTS = ("quire", "services", "shared", "deploy")
FILES = ("pyproject.toml", "setup.py", "build_backend.py", "README.md", "LICENSE")

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, because a build leaves files in its tree and may find those of the one before."""
    directory = tmp_path_factory.mktemp("wheel")
    for name in PARTS:
        shutil.copytree(ROOT / name, directory / "src" / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy2(ROOT / name, directory / "src" / name)
    options = ("--quiet", "--no-index", "--no-build-isolation", "--no-deps")
    pip("wheel", *options, "--wheel-dir", str(directory), str(directory / "src"))
    (built,) = directory.glob("*.whl")
    return built


def pip(*words: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *words]
    # The source tree on PYTHONPATH would count as an installation.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=HANG_S)
    assert result.returncode == 0, result.stderr


@pytest.fixture(scope="module")
def environment(wheel: Path) -> Path:
    """An environment that holds the wheel and nothing else."""
    directory = wheel.parent / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(directory)], check=True, timeout=HANG_S)
    pip("--python", f"{directory}/bin/python", "install", "--quiet", "--no-deps", "--no-index", str(wheel))
    return directory


@pytest.fixture
def run(environment: Path, tmp_path: Path) -> Run:
    def run(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """A command of the environment, which is all that PATH has: no compiler, no shell."""
        own = {"PATH": f"{environment}/bin", "HOME": str(tmp_path), **variables}
        kept = {name: value for name, value in os.environ.items() if name in ("TMPDIR", "LANG")}
        words = (f"{environment}/bin/{command[0]}", *command[1:])
        return subprocess.run(words, cwd=tmp_path, env=kept | own, capture_output=True, text=True, timeout=HANG_S)

    return run


def test_one_wheel_serves_every_python_and_has_the_kernels(wheel: Path) -> None:
    assert re.fullmatch(r"quire-[\d.]+-py3-none-(manylinux_\d+_\d+_)?\w+\.whl", wheel.name)
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        for level in build.levels():
            library = archive.read(f"services/worker/ops/cpu/{build.library_name(level)}")
            assert build.source_digest().encode() in library
    assert "quire/models/quire-chat/model.safetensors" in names
    assert not [name for name in names if name.startswith(("tests/", "benchmarks/", "training/"))]


def test_pythons_that_quire_supports_take_it(wheel: Path, tmp_path: Path) -> None:
    for version in ("3.11", "3.12"):
        options = ("--dry-run", "--quiet", "--no-deps", "--no-index", "--target", str(tmp_path))
        pip("install", *options, "--only-binary", ":all:", "--python-version", version, str(wheel))


def test_alone_it_says_what_to_install(run: Run, wheel: Path) -> None:
    assert run("quire", "version").returncode == 0
    assert "serve" in run("quire", "--help").stdout
    result = run("quire", "demo")
    assert (result.returncode, result.stdout) == (1, "")
    assert re.fullmatch(
        rf"quire demo: the package \w+ is missing; install it with: pip install '{re.escape(str(wheel))}\[local\]'\n",
        result.stderr,
    )


def test_with_its_dependencies_it_runs_the_demo(run: Run, environment: Path) -> None:
    dependencies = sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
    # Paths that a .pth file names bring their modules, and not their own .pth files: the editable Quire stays out.
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text("\n".join(dependencies))
    where = run("python", "-c", "import quire, services.worker.ops.cpu as cpu; print(quire.__file__, cpu.__file__)")
    assert all(Path(path).is_relative_to(environment) for path in where.stdout.split()), where

    result = run("quire", "demo", "--verbose")

    assert result.returncode == 0, result.stderr
    question, *answer, figures = (part.strip() for part in result.stdout.strip().split("\n\n"))
    assert question == PROMPT
    assert len(" ".join(answer).split()) > 20
    assert "tokens/s" in figures
    assert "serving quire-chat on cpu in float32" in result.stderr
    assert "plain torch" not in result.stderr
