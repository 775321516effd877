"""Children find the packages of their parent, and nothing of the current directory."""

from __future__ import annotations

import os
import shutil
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


@pytest.mark.parametrize("form", ["user", "system"])
def test_a_package_beside_others_does_not_put_them_before_the_standard_library(tmp_path: Path, form: str) -> None:
    """An old `typing.py` among installed packages is harmless, as long as nothing puts its directory first. `user`: the
    packages of `pip install --user`; `system`: those of the interpreter that a virtual environment shares."""
    (tmp_path / "lib").mkdir()
    packages = tmp_path / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    (packages / "shared").mkdir(parents=True)
    for name in ("__init__.py", "python_child.py"):
        shutil.copy(HOME / "shared" / name, packages / "shared")
    (packages / "shared" / "child.py").write_text("import typing\nprint('found', typing.__file__)")
    (packages / "typing.py").write_text("raise SystemExit('an old typing is imported')")
    code = (
        "import subprocess\nfrom shared.python_child import child_environment, python_command\n"
        "subprocess.run(python_command('shared.child'), env=child_environment(), check=True)"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    python = sys._base_executable  # type: ignore[attr-defined]
    if form == "user":
        environment["PYTHONUSERBASE"] = str(tmp_path)
    else:
        # A base installation of our own: its prefix is where its packages are.
        subprocess.run([python, "-m", "venv", "--system-site-packages", "--without-pip", tmp_path / "v"], check=True)
        python = str(tmp_path / "v/bin/python")
        (Path(sysconfig.get_path("purelib", vars={"base": str(tmp_path / "v")})) / "prefix.pth").write_text(
            f"import site; site.PREFIXES.append({str(tmp_path)!r}); site.addsitedir({str(packages)!r})"
        )
    result = subprocess.run([python, "-c", code], env=environment, cwd="/", capture_output=True, text=True)

    assert result.stdout.startswith("found "), result.stderr


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
