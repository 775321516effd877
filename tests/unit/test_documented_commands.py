"""Every command that a document shows exists, with its options: those of `quire`, the targets of make, the modules of
`python -m`, the services and profiles of Compose, and the files for docker and kubectl. They are parsed, not run."""

from __future__ import annotations

import argparse
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from quire.cli.main import COMMANDS, main
from shared.option_parser import OptionParser
from shared.python_child import child_environment, python_command
from tests.fakes.waiting import HANG_S

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PROGRAMS = ("quire", "make", "python -m", "docker compose", "docker build", "docker run", "kubectl")
# Modules of other projects, and modules without a parser of options, with the first words that they take.
FOREIGN = {"pytest", "vllm.entrypoints.openai.api_server"}
WITHOUT_PARSER: dict[str, set[str]] = {
    "benchmarks.gpu.triton_cache": {"pack", "unpack"},
    "benchmarks.quantization": set(),
    "deploy.dashboards": set(),
    "tests.models.table": set(),
}
_START = rf"(?:[A-Z_]+=\S* )*(?:{'|'.join(PROGRAMS)}) "


class ParsedError(Exception):
    """Raised instead of running a command whose options are known."""


def commands(text: str) -> list[str]:
    """Returns the commands in code blocks, where a backslash continues a line, and those in the text."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    rest = re.sub(r"^```\w*\n.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    found = [*(line for line in lines if re.match(_START, line)), *re.findall(rf"`({_START}[^`\n]+)`", rest)]
    return [re.split(r" [&|>]+( |$)|; |  #| # ", command)[0].strip() for command in found]


SHOWN = [(path.name, command) for path in DOCUMENTS for command in dict.fromkeys(commands(path.read_text()))]


def only(parse: Callable[..., Any]) -> Callable[..., Any]:
    """A parser's `parse_args` that never returns, so that nothing runs."""

    def parse_only(parser: argparse.ArgumentParser, *args: Any) -> Any:
        found = parse(parser, *args)
        if hasattr(found, "benchmark"):  # another parser reads the options of that benchmark
            return found
        raise ParsedError

    return parse_only


def words_of(command: str, program: str) -> list[str]:
    words = shlex.split(command)
    while re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words.pop(0)
    return words[len(program.split()) :]


def shown(program: str) -> list[Any]:
    mine = [(name, command) for name, command in SHOWN if re.match(rf"(?:[A-Z_]+=\S* )*{program} ", command)]
    return [pytest.param(words_of(command, program), id=f"{name}: {command}") for name, command in mine]


@pytest.mark.parametrize("words", shown("quire"))
def test_quire_takes_its_options(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (argparse.ArgumentParser, OptionParser):
        monkeypatch.setattr(kind, "parse_args", only(kind.parse_args))
    if words[0] in COMMANDS and words[1:] and "--help" not in words:
        with pytest.raises(ParsedError):
            main([word for word in words if word not in ("…", "...")])
    else:
        assert words[0] in {*COMMANDS, "help", "version", "--help", "--version"}


@pytest.mark.parametrize("words", shown("make"))
def test_make_has_its_targets(words: list[str]) -> None:
    targets = re.findall(r"^([\w./-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    variables = re.findall(r"^([A-Z_]+) [?:]?=", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for word in words:
        name, equals, _ = word.partition("=")
        assert name in (variables if equals else targets)


@pytest.mark.parametrize("words", shown("python -m"))
@pytest.mark.filterwarnings("ignore:.*found in sys.modules after import:RuntimeWarning")
def test_python_has_the_modules_and_they_take_their_options(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    module, *arguments = words
    if module in FOREIGN:
        return
    if module in WITHOUT_PARSER:
        assert find_spec(module) is not None
        assert {*arguments[:1]} <= WITHOUT_PARSER[module]
    elif module == "quire":
        test_quire_takes_its_options(arguments, monkeypatch)
    else:
        monkeypatch.setattr(argparse.ArgumentParser, "parse_args", only(argparse.ArgumentParser.parse_args))
        monkeypatch.setattr(sys, "argv", [module, *arguments])
        with pytest.raises(ParsedError):
            runpy.run_module(module, run_name="__main__")


@pytest.mark.parametrize("words", shown("docker build") + shown("kubectl"))
def test_the_files_are_there(words: list[str]) -> None:
    for flag, path in pairwise(words):
        if flag in ("-f", "-k", "kustomize") and not path.startswith("<"):
            assert (ROOT / path).exists()


@pytest.mark.parametrize("words", shown("docker run"))
def test_docker_runs_an_image_that_takes_its_options(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("--rm", action="store_true")
    for flag in ("--entrypoint", "--gpus"):
        parser.add_argument(flag)
    for flag in ("-p", "-v"):
        parser.add_argument(flag, action="append")
    parser.add_argument("image", nargs="?")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    found = parser.parse_args([word for word in words if word != "…"])
    if found.image is None:
        return
    name, _, version = found.image.removeprefix("quire-").partition(":")
    dockerfile = (ROOT / "deploy" / "docker" / f"{name}.Dockerfile").read_text()
    assert version in ("", metadata.version("quire"))
    if found.entrypoint is None:
        (entry,) = re.findall(r'^ENTRYPOINT \["quire", (.*)\]$', dockerfile, re.MULTILINE)
        test_quire_takes_its_options([*shlex.split(entry.replace(",", " ")), *found.arguments], monkeypatch)
    elif found.entrypoint == "quire":
        test_quire_takes_its_options(found.arguments, monkeypatch)
    else:
        (path,) = found.arguments
        assert path in dockerfile


@pytest.mark.parametrize("words", shown("docker compose"))
def test_compose_has_its_services_and_profiles(words: list[str]) -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    profiles = {profile for service in services.values() for profile in service.get("profiles", ())}
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("--profile", action="append", default=[])
    actions = parser.add_subparsers(required=True)
    for action in ("up", "down", "logs", "build", "ps"):
        of_action = actions.add_parser(action, exit_on_error=False)
        for flag in ("--build", "-d", "--follow", "--volumes"):
            of_action.add_argument(flag, action="store_true")
        of_action.add_argument("--rmi")
        of_action.add_argument("--scale", action="append", nargs="?", default=[], const="router")
        of_action.add_argument("services", nargs="*")
    found = parser.parse_args(words)
    named = {*found.services, *(scale.partition("=")[0] for scale in found.scale)}
    assert (named <= services.keys(), {*found.profile} <= profiles) == (True, True)


@pytest.mark.parametrize(
    "command", ["quire version", "quire serve --help", "quire models", "quire models gemma", "quire doctor --json"]
)
def test_what_ends_by_itself_runs(command: str) -> None:
    """Of the commands in sentences and tables, those that need neither an argument of the reader's nor a server. Most
    others run in tests of their own."""
    assert command in {shown for _, shown in SHOWN}
    words = python_command("quire", *command.split()[1:])
    done = subprocess.run(words, env=child_environment(), capture_output=True, text=True, timeout=HANG_S)
    # The doctor's status is 1 if it has found a problem of this host.
    assert done.returncode in ((0, 1) if "doctor" in command else (0,)), done.stderr
    assert done.stdout


def test_commands_are_found() -> None:
    """Shows that the tests above have commands to check."""
    text = "Run `quire serve --port 1 &` or\n```\nA=1 make test \\\n  B=2  # comment\nls\n```\n"
    assert commands(text) == ["A=1 make test    B=2", "quire serve --port 1"]
    assert all(shown(program) for program in PROGRAMS)
