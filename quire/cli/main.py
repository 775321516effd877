"""The `quire` command. Imports only the module of the chosen subcommand, so that every subcommand starts fast."""

from __future__ import annotations

import importlib
import os
import select
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from shared.output import dropping
from shared.version import version


@dataclass(frozen=True, slots=True)
class Command:
    """A subcommand. `module` has a function `main(argv) -> int`. `extra`: the extra to install if an import fails.
    `serves`: the command runs until it is stopped, even if the reader of its output goes away."""

    module: str
    extra: str
    help: str
    serves: bool = False


# Use gRPC's older socket code, in which the thread that polls for completions also reads the sockets. With the newer
# code, whenever the peer reads from a Unix socket, threads of gRPC on this side wake up as well, although they have
# nothing to do. These wakeups make up a fifth of the cost of a small message (ADR 16). A gRPC release without the older
# code logs a line and uses the newer code. The value goes into an environment variable of the same name, which grpc
# reads when it is imported.
GRPC_EXPERIMENTS = "-event_engine_listener,-event_engine_client,-event_engine_for_all_other_endpoints"

COMMANDS = {
    "serve": Command("quire.cli.serve", "local", "run the whole stack on this host", serves=True),
    "chat": Command("quire.cli.chat", "local", "talk to a server in the terminal"),
    "run-batch": Command("quire.cli.run_batch", "local", "answer a file of requests in OpenAI's batch format"),
    "demo": Command("quire.cli.demo", "local", "start the stack, stream one answer, stop the stack"),
    "router": Command(
        "services.router.main", "router", "run one router: APIs and text, in front of schedulers", serves=True
    ),
    "scheduler": Command(
        "services.scheduler.main",
        "scheduler",
        "run one scheduler: continuous batching and block tables for its workers",
        serves=True,
    ),
    "worker": Command("services.worker.main", "worker", "run one worker: weights, KV cache and sampling", serves=True),
    "gateway": Command(
        "quire.cli.gateway", "gateway", "run one gateway: Envoy, HTTP and gRPC in front of routers", serves=True
    ),
    "download": Command("quire.cli.download", "worker", "download what a worker needs of a model on the hub"),
    "models": Command("quire.cli.models", "worker", "list the architectures of models that Quire runs"),
    "estimate": Command(
        "quire.cli.estimate", "worker", "estimate a model's memory and the GPUs that hold it, from its config"
    ),
    "calibrate": Command("quire.cli.calibrate", "local", "measure how long steps take on this device, for simulate"),
    "simulate": Command("quire.cli.simulate", "simulator", "simulate a cluster on a trace, in virtual time"),
    "bench": Command(
        "quire.cli.bench", "local", "measure a server under load, or a model: quire bench serve, throughput, latency"
    ),
    "doctor": Command("quire.cli.doctor", "local", "check this host before Quire runs on it, and say what to do"),
    "health": Command("quire.cli.health", "telemetry", "check whether a part is serving, for health checks"),
}

USAGE = """\
usage: quire COMMAND [options]

{commands}
  version    print the version
  help       print this, or the options of a command: quire help serve

Try: quire serve              serve the bundled model on http://127.0.0.1:8000
     quire serve MODEL        serve a directory in Hugging Face format, or a model's name on the hub;
                              with vLLM's options (docs/coming-from-vllm.md)
     quire chat               talk to it
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit status. Without `argv`, this process is the quire command."""
    if argv is not None:
        return _run(list(argv))
    # The processes that this one starts with multiprocessing must not import from the current directory.
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        try:
            return _run(sys.argv[1:], is_process=True)
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except BrokenPipeError:
        if sys.stdout is None or not _has_no_reader(sys.stdout.fileno()):
            raise
        # The reader of the output, such as head, has read enough. Without this, Python would report the error at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _run(words: list[str], *, is_process: bool = False) -> int:
    name, rest = (words[0], words[1:]) if words else ("help", [])
    if name in ("help", "--help", "-h") and rest:
        name, rest = rest[0], ["--help"]
    if name in ("help", "--help", "-h"):
        print(usage(), end="")
        return 0
    if name in ("version", "--version", "-V"):
        print(version())
        return 0
    command = COMMANDS.get(name)
    if command is None:
        print(f"quire: there is no command {name!r}; see quire --help", file=sys.stderr)
        return 2
    if is_process:
        sys.stderr = dropping(sys.stderr)
        if command.serves:
            sys.stdout = dropping(sys.stdout)
            # With --status-fd, the parent process has already warned of unknown QUIRE_ variables.
            if not any(word.startswith("--status-fd") for word in rest):
                _warn_of_variables(name)
    os.environ.setdefault("GRPC_EXPERIMENTS", GRPC_EXPERIMENTS)
    try:
        module = importlib.import_module(command.module)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing.partition(".")[0] in ("quire", "services", "shared", "deploy"):
            raise
        from quire.cli.installation import install_command

        hint = install_command(command.extra)
        print(f"quire {name}: the package {missing} is missing; install it with: {hint}", file=sys.stderr)
        return 1
    return int(module.main(rest))


def _has_no_reader(descriptor: int) -> bool:
    """Returns whether the reader of a pipe or socket has closed it. If standard output still has a reader, a
    BrokenPipeError comes from another pipe or socket."""
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def _warn_of_variables(name: str) -> None:
    if not any(variable.startswith("QUIRE_") for variable in os.environ):
        return
    from quire.cli.stack import unknown_options

    for sentence in unknown_options(f"quire {name}").values():
        print(f"quire {name}: {sentence}", file=sys.stderr)


def usage() -> str:
    lines = [f"  {name:<10} {command.help}" for name, command in COMMANDS.items()]
    return USAGE.format(commands="\n".join(lines))


if __name__ == "__main__":
    sys.exit(main())
