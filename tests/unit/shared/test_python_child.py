"""Children find the packages of their parent, and nothing of the current directory."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from shared import python_child
from shared.python_child import HOME, child_environment, python_command


def paths(python_path: str) -> list[str]:
    return child_environment({"PYTHONPATH": python_path})["PYTHONPATH"].split(os.pathsep)


def test_entries_that_stand_for_the_current_directory_are_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    for entries in ("", ":", ".", "./", "::.", f"../{tmp_path.name}"):
        assert paths(entries) == [str(HOME)], entries


def test_other_entries_are_kept_as_absolute_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    assert paths("/opt/a::lib:../b") == [str(HOME), "/opt/a", f"{tmp_path}/lib", f"{tmp_path.parent}/b"]
    assert paths(f"/opt/a:{HOME}") == ["/opt/a", str(HOME)]
    # Someone who writes the directory's whole name wants it.
    assert paths(f"{tmp_path}") == [str(HOME), str(tmp_path)]


def test_an_installed_package_needs_no_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if os.path.realpath(entry) != str(HOME)])
    assert "PYTHONPATH" not in child_environment({})

    site = Path(os.path.realpath(sysconfig.get_path("purelib")))
    monkeypatch.setattr(python_child, "HOME", site)
    monkeypatch.setattr(sys, "path", [str(site)])
    assert "PYTHONPATH" not in child_environment({})


def test_a_bare_source_tree_finds_itself_from_any_directory(tmp_path: Path) -> None:
    """Without an installation (-S hides it), the parent finds the packages by its current directory."""
    child = "(python_command('shared.python_child')[0], '-S', *python_command('quire', 'help')[1:])"
    code = (
        "import subprocess\nfrom shared.python_child import child_environment, python_command\n"
        f"subprocess.run({child}, env=child_environment(), cwd={str(tmp_path)!r}, check=True)"
    )
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONSAFEPATH")}
    result = subprocess.run(
        [sys.executable, "-S", "-c", code], cwd=HOME, env=environment, capture_output=True, text=True
    )

    assert "usage: quire COMMAND" in result.stdout, result.stderr


def test_grandchildren_leave_the_current_directory_out_too() -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import sys; print(sys.flags.safe_path)'])"
    result = subprocess.run(
        [sys.executable, "-c", code], env=child_environment(), capture_output=True, text=True, check=True
    )

    assert result.stdout == "True\n"
    assert python_command("quire", "serve") == (sys.executable, "-P", "-m", "quire", "serve")
