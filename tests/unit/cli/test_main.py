"""The `quire` command itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from quire.cli import main as cli
from tests.fakes.waiting import HANG_S


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "quire.cli.main", *words], capture_output=True, text=True, timeout=HANG_S
    )


def test_help_names_every_command() -> None:
    for words in ((), ("help",), ("--help",)):
        result = run(*words)
        assert result.returncode == 0
        assert all(f"\n  {name} " in result.stdout for name in cli.COMMANDS)


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main([name, "--help"])

    assert stopped.value.code == 0
    assert f"usage: quire {name}" in capsys.readouterr().out


def test_grpc_is_told_of_its_sockets_before_it_is_imported_unless_somebody_else_has_told_it() -> None:
    code = (
        "import sys; from quire.cli import main as cli; assert 'grpc' not in sys.modules; "
        "sys.argv = ['quire', 'router', '--help']\ntry: cli.main()\nexcept SystemExit: pass\n"
        "import os; assert 'grpc' in sys.modules; print(os.environ['GRPC_EXPERIMENTS'])"
    )

    def told(environment: dict[str, str]) -> str:
        command = [sys.executable, "-c", code]
        result = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, env=environment, check=True)
        return result.stdout.splitlines()[-1]

    environment = {name: value for name, value in os.environ.items() if name != "GRPC_EXPERIMENTS"}
    assert told(environment) == cli.GRPC_EXPERIMENTS
    assert told(environment | {"GRPC_EXPERIMENTS": ""}) == ""


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", ["help", "version", "models", "models --help", "estimate"])
def test_a_reader_that_goes_away_ends_a_command_silently(words: str, unbuffered: str) -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "quire.cli.main", *words.split()]
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with os.fdopen(write) as output:
        result = subprocess.run(
            command, stdout=output, stderr=subprocess.PIPE, text=True, timeout=HANG_S, env=environment
        )
    assert result.stderr == ""
    # argparse ignores that the help could not be written.
    assert result.returncode == 1 or (words, unbuffered) == ("models --help", "1")


def test_another_pipe_that_breaks_is_reported() -> None:
    code = (
        "import sys, types; from quire.cli import main as cli\n"
        "def fail(argv): raise BrokenPipeError('the pipe to a part')\n"
        "sys.modules['failing'] = types.SimpleNamespace(main=fail)\n"
        "cli.COMMANDS['fail'] = cli.Command('failing', '', ''); sys.argv = ['quire', 'fail']; sys.exit(cli.main())"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG_S)
    assert result.returncode == 1
    assert "the pipe to a part" in result.stderr


def test_a_command_that_is_not_there_is_told() -> None:
    result = run("sevre")

    assert (result.returncode, result.stderr) == (2, "quire: there is no command 'sevre'; see quire --help\n")


def test_a_missing_extra_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(cli.COMMANDS, "dream", cli.Command("dream_catcher.net", "dream", "to dream"))

    assert cli.main(["dream"]) == 1
    root = Path(cli.__file__).parents[2]
    assert capsys.readouterr().err == (
        f"quire dream: the package dream_catcher is missing; install it with: pip install -e '{root}[dream]'\n"
    )


def test_the_command_line_loads_nothing_heavy() -> None:
    """What `quire --help` and the supervisor itself load; they run beside the parts on the same cores."""
    code = "import sys, quire.cli.serve; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()

    assert not {"torch", "transformers", "numpy", "grpc", "rich", "openai", "prompt_toolkit"} & set(loaded)


def test_health_tells_what_is_wrong() -> None:
    result = run("health", "http://127.0.0.1:1")

    assert result.returncode == 1
    assert result.stderr.startswith("quire health: http://127.0.0.1:1 is not reachable")
