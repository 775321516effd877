"""`quire serve`: runs the whole stack on this host with one command."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import signal
import sys
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from quire.cli import gateway, vllm_options
from quire.cli.display import PlainDisplay
from quire.cli.http_probe import ask
from quire.cli.part import PartSpec
from quire.cli.replicas import ReplicaConfig
from quire.cli.stack import SERVICES, WIRING, Stack, part_environment, part_specs, socket_address, stack_directory
from quire.cli.stack_options import build_stack, read_options
from quire.cli.supervisor import Check, StackError, Supervisor
from services.worker.config import WorkerConfig
from shared.config import ConfigError, add_options
from shared.option_parser import OptionParser, StoreOnce

if TYPE_CHECKING:
    from quire.cli.live_display import LiveDisplay

PROG = "quire serve"
DESCRIPTION = """\
Serves one model or several on this host: starts gateway, routers, schedulers and workers, and restarts a part that
fails. Options apply to all models; a file with a table [[models]] for each gives them options of their own.
Every option is also an environment variable (QUIRE_BLOCK_SIZE for --block-size) and a key of the TOML file.
vLLM's command lines work: docs/coming-from-vllm.md compares every option."""

# How often the list of models is asked for at the end of the start until it is whole, and seconds in between.
LIST_TRIES = 100
LIST_PAUSE_S = 0.05

# Called as soon as the stack answers requests. The arguments are the stack's URL and a function that stops the stack.
OnReady = Callable[[str, Callable[[], None]], Awaitable[None]]


def main(argv: Sequence[str]) -> int:
    arguments = vars(_parser().parse_args(argv))
    verbose, path = arguments.pop("verbose"), arguments.pop("config")
    try:
        stack = with_port(build_stack(arguments, read_options(path)))
        asyncio.run(run(stack, lambda url, _: _welcome(url, stack), verbose=verbose))
    except (ConfigError, gateway.GatewayError) as error:
        print(f"{PROG}: {error}", file=sys.stderr)
        return 2
    except StackError as error:
        print(f"{PROG}: {error}", file=sys.stderr)
        return 1
    return 0


def with_port(stack: Stack) -> Stack:
    """Returns the stack with the gateway's host as an IP address and, in place of port 0, a free port. Raises
    GatewayError if the gateway cannot listen there."""
    return stack.with_gateway(gateway.with_real_address(stack.gateway))


async def run(stack: Stack, on_ready: OnReady, *, verbose: bool, private: bool = False) -> None:
    """Runs the stack until a signal arrives or `on_ready` stops it. A `private` stack listens only on a Unix socket,
    whose address `on_ready` gets as the URL. No process is left when this function returns. Raises StackError if a part
    fails too often."""
    with stack_directory() as directory, start_display(stack.part_names, verbose) as display:
        for note in stack.notes:
            display.note(note)
        specs, environment = part_specs(stack, directory, private=private), part_environment(stack, directory)
        url = socket_address(directory, "gateway") if private else gateway.url(stack.gateway)
        await supervise(specs, environment, display, lambda: _problem(url, stack), lambda stop: on_ready(url, stop))


async def supervise(
    specs: Sequence[PartSpec],
    environment: Mapping[str, str],
    display: PlainDisplay | LiveDisplay,
    check: Check,
    on_ready: Callable[[Callable[[], None]], Awaitable[None]],
) -> None:
    """Runs a Supervisor that obeys this process's signals: the first signal stops the parts in order, the second signal
    kills them at once."""
    stop, hurry = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        if stop.is_set():
            hurry.set()
            return
        display.settle()
        display.note("stopping; interrupt again to stop at once")
        stop.set()

    async def ready() -> None:
        display.settle()
        await on_ready(stop.set)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)
    await Supervisor(specs, environment, display, check).run(stop, hurry, ready)


async def _problem(url: str, stack: Stack) -> str | None:
    """Returns the server's problem, or None if it is healthy and serves all models of the stack."""
    try:
        answer = await ask(url.removeprefix("http://"), "/health")
        if answer.status != 200:
            return f"GET /health answers {answer.status}: {answer.body.strip()[:200]}"
        # A server is healthy as soon as one model is served.
        listed = await _cards(url, stack.api_key) if stack.models else {}
    except OSError as error:
        return str(error)
    missing = [name for name in stack.models if name not in listed]
    return f"these models are not served yet: {', '.join(missing)}" if missing else None


async def _cards(url: str, api_key: str | None) -> dict[str, Any]:
    """Returns what GET /v1/models says of each model, by name; nothing if it fails. Raises OSError."""
    models = await ask(url.removeprefix("http://"), "/v1/models", api_key=api_key)
    return {str(card["id"]): card for card in json.loads(models.body)["data"]} if models.status == 200 else {}


async def _tasks(url: str, stack: Stack) -> dict[str, Sequence[str]]:
    """Returns the tasks of each model that is listed, by name. Waits for all models, because another router can answer
    than the one that `_problem` asked, and it may not have reached all schedulers yet."""
    found: dict[str, Sequence[str]] = {}
    for _ in range(LIST_TRIES):
        with contextlib.suppress(OSError):
            cards = await _cards(url, stack.api_key)
            found = {name: list(card["tasks"]) for name, card in cards.items()}
            if found and all(name in found for name in stack.models):
                break
        await asyncio.sleep(LIST_PAUSE_S)
    return found


async def _chats(url: str, stack: Stack, model: str) -> bool:
    """Returns whether a model has a chat template, without which it completes texts but answers no chats."""
    try:
        path = f"/tokenizer_info?model={quote(model, safe='')}"
        answer = await ask(url.removeprefix("http://"), path, api_key=stack.api_key)
        return answer.status != 200 or json.loads(answer.body).get("chat_template") is not None
    except (OSError, ValueError):
        return True


async def _welcome(url: str, stack: Stack) -> None:
    tasks = await _tasks(url, stack)
    names = stack.models or tuple(tasks)[:1]
    chats = {name for name in names if "generate" in tasks.get(name, ()) and await _chats(url, stack, name)}
    # Do not print the key itself: the terminal's output might be logged.
    header, note = "", ""
    if stack.api_key is not None:
        header = ' -H "authorization: Bearer $QUIRE_API_KEY"'
    heading = (
        f"{''.join(names) or 'The stack'} is served."
        if len(names) < 2
        else f"{len(names)} models are served: {', '.join(names)}."
    )
    commands = [
        f"curl -N {url}{path} -H 'content-type: application/json'{header} -d '{json.dumps(body)}'"
        for path, body in (_example(name, tasks[name], name in chats) for name in names if name in tasks)
    ]
    chat = next((name for name in names if name in chats), None)
    if chat is not None:
        commands.append(f"quire chat --url {url}" + (f" --model {chat}" if len(names) > 1 else ""))
    if stack.api_key is not None:
        which = {1: "this command", 2: "both commands"}.get(len(commands), "these commands")
        note = f"      Set QUIRE_API_KEY to the key for {which}.\n"
    print(
        f"\n{heading}\n"
        f"  OpenAI's API   {url}/v1\n"
        f"  gRPC           {url.removeprefix('http://')}\n"
        f"  metrics        {url}/metrics\n\n"
        f"Try:  " + "\n      ".join(commands) + f"\n{note}\nCtrl-C stops it.",
        flush=True,
    )


def _example(model: str, tasks: Sequence[str], chats: bool) -> tuple[str, dict[str, Any]]:
    """Returns the path and the body of a request that a model with these tasks answers."""
    if "generate" in tasks and not chats:
        return "/v1/completions", {"model": model, "prompt": "Once upon a time", "stream": True}
    if "generate" in tasks:
        message = {"role": "user", "content": "Hello!"}
        return "/v1/chat/completions", {"model": model, "messages": [message], "stream": True}
    return "/classify" if "classify" in tasks else "/v1/embeddings", {"model": model, "input": "Hello!"}


def start_display(names: Sequence[str], verbose: bool) -> PlainDisplay | LiveDisplay:
    """Returns a live display on a terminal, otherwise a display of plain lines. `names`: the parts of the stack."""
    if sys.stderr.isatty():
        from quire.cli.live_display import LiveDisplay

        return LiveDisplay(names, verbose)
    return PlainDisplay(verbose)


def _parser() -> argparse.ArgumentParser:
    parser = OptionParser(
        prog=PROG,
        usage="quire serve [MODEL ... | --model MODEL] [options]",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_models(parser)
    add_stack_options(parser)
    return parser


def _add_models(parser: argparse.ArgumentParser) -> None:
    (field,) = (field for field in dataclasses.fields(WorkerConfig) if field.name == "model")
    options: dict[str, Any] = {"metavar": "MODEL", "default": argparse.SUPPRESS, "action": StoreOnce}
    several = " Several: all of them, on the same address."
    parser.add_argument("model", nargs="*", help=field.metadata["help"] + several, **options)
    parser.add_argument("--model", help="The same as one MODEL without a flag.", **options)


def add_stack_options(parser: argparse.ArgumentParser, decided: Collection[str] = WIRING) -> None:
    """Adds the options of build_stack, and `verbose` and `config`. Skips options that the parser already has. Hides
    from --help the options in `decided`, which users cannot set for this command."""
    parser.add_argument("-v", "--verbose", action="store_true", help="show the log lines of all parts")
    parser.add_argument("--config", metavar="FILE", default=None, help="TOML file with options")
    add_options(parser.add_argument_group("number of parts"), ReplicaConfig)
    for name in reversed(SERVICES):
        add_options(parser.add_argument_group(name), SERVICES[name])
    others = parser.add_argument_group()
    taken = {action.dest for action in parser._actions}
    for option in vllm_options.OPTIONS.values():
        if option.key not in taken:
            option.add_to(others)
    for action in parser._actions:
        if action.dest in decided:
            action.help = argparse.SUPPRESS
        elif action.dest == "metrics_port":
            ports = ", ".join(f"{name} +{offset}" for offset, name in enumerate(SERVICES))
            action.help = (
                f"First of the TCP ports for Prometheus metrics ({ports}; for each further part of a kind "
                f"+{len(SERVICES)} more). If left out, off."
            )
