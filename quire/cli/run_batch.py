"""`quire run-batch`: answers the requests in a file, with a stack that it starts or with a running server."""

from __future__ import annotations

import argparse
import asyncio
import os
import stat
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from quire.batch.lines import Line, read_lines
from quire.batch.output import STANDARD_OUTPUT, BatchError, BatchOutput
from quire.batch.run import BatchRun, Tally, skip_answered
from quire.batch.server import Server, open_session
from quire.cli import serve
from quire.cli.progress_bar import progress_bar
from quire.cli.server_url import check_url, server_root
from quire.cli.stack import WIRING, Stack
from quire.cli.stack_options import build_stack, read_options
from quire.cli.supervisor import StackError
from shared.config import ConfigError, add_options, build, option
from shared.option_parser import OptionParser

PROG = "quire run-batch"
DESCRIPTION = """\
Answers a file of requests in OpenAI's batch format: one JSON object with custom_id, method, url and body per line.
The answers have the order of the requests. To continue a run that was stopped or killed, start it again with the same
files: requests that already have an answer, an error included, are not sent again. Without --base-url it starts its
own stack, which takes quire serve's options.

Exit status: 0 if every request succeeded; 1 if one failed or the run could not continue; 2 for invalid options;
130 if it was interrupted."""
STANDARD_INPUT = "-"
# Options of quire serve that run-batch refuses, because its own stack listens on a private Unix socket.
ADDRESS = frozenset({"host", "port"})
# Default of --max-concurrency with --base-url. The server's capacity is unknown. A value above it does no harm, because
# requests that an overloaded server refuses are retried.
DEFAULT_CONCURRENCY = 256


@dataclass(frozen=True, slots=True)
class BatchConfig:
    input_file: str = option("", "File with the requests; - is standard input.")
    output_file: str = option("", "File for the answers; a run continues an existing one. - is standard output.")
    base_url: str = option(
        "", "URL of a running server, with or without /v1. If left out, run-batch starts its own stack."
    )
    max_concurrency: int | None = option(
        None,
        "Maximum number of requests in progress at a time. If left out, twice --max-num-seqs for each worker of its "
        "own stack, or 256 for --base-url.",
        minimum=1,
        maximum=16384,
    )
    request_timeout: float = option(3600.0, "Seconds to wait for one answer, at most.", minimum=0.001)
    retry_timeout: float = option(
        600.0, "Seconds during which a request is retried while the server is too busy or not reachable.", minimum=0
    )


def main(argv: Sequence[str]) -> int:
    flags = vars(_parser().parse_args(argv))
    verbose, path = flags.pop("verbose"), flags.pop("config")
    own = {field.name: flags.pop(field.name) for field in fields(BatchConfig) if field.name in flags}
    tally, start = Tally(), time.monotonic()
    try:
        config = build(BatchConfig, own)
        stack = _stack(config, flags, read_options(path))
        fd = _open_input(config.input_file)
    except (ConfigError, BatchError) as error:
        print(f"{PROG}: {error}", file=sys.stderr)
        return 2
    problem, is_whole = "", False
    try:
        is_whole = asyncio.run(_run(config, fd, stack, tally, verbose))
    except (BatchError, StackError) as error:
        problem = str(error)
    except KeyboardInterrupt:
        pass
    print(_summary(config, tally, is_whole, time.monotonic() - start), file=sys.stderr)
    if problem:
        print(f"{PROG}: {problem}", file=sys.stderr)
        return 1
    if not is_whole:
        return 130
    return 1 if tally.failed else 0


def _stack(config: BatchConfig, flags: Mapping[str, Any], file: Mapping[str, Any]) -> Stack:
    """Builds the configuration of the stack. With --base-url, the run uses only the API key of this configuration.
    Raises ConfigError."""
    for name in ("input_file", "output_file"):
        if not getattr(config, name):
            raise ConfigError(f"--{name.replace('_', '-')} is missing")
    if config.base_url:
        check_url(config.base_url)
        if others := sorted({*flags, *file} - {"api_key", "api-key"}):
            raise ConfigError(
                f"--{others[0].replace('_', '-')} configures a new stack, but --base-url names a running server"
            )
    if addresses := sorted(ADDRESS & flags.keys()):
        raise ConfigError(f"--{addresses[0]} is for quire serve; the stack of run-batch listens on a private socket")
    return build_stack(flags, file)


async def _run(config: BatchConfig, fd: int, stack: Stack, tally: Tally, verbose: bool) -> bool:
    """Runs the batch. Returns whether the batch reached its end before the stack was stopped. `fd`: file descriptor of
    the input. Raises BatchError, StackError."""
    with BatchOutput(config.output_file) as output:
        if output.is_same_file(fd):
            raise BatchError("--input-file and --output-file are the same file")
        total = _count_lines(fd)
        lines = read_lines(fd)
        await skip_answered(lines, output, tally)
        first = await anext(lines, None)
        if first is None:
            return True  # Every request already has an answer, so the model is not needed.
        rest = _chain(first, lines)
        is_whole = False

        async def answer(address: str, stop: Callable[[], None]) -> None:
            nonlocal is_whole
            limit = config.max_concurrency or _default_concurrency(config, stack)
            key = stack.api_key or (os.environ.get("OPENAI_API_KEY") if config.base_url else None)
            session, url = open_session(address, key)
            async with session:
                server = Server(
                    session, url, request_timeout=config.request_timeout, retry_timeout=config.retry_timeout
                )
                with progress_bar(config.input_file, total) as advance:
                    advance(tally.kept)
                    await BatchRun(server.ask, output, tally, limit, lambda: advance(1)).run(rest)
            output.sync()
            is_whole = True
            stop()

        if config.base_url:
            await answer(server_root(config.base_url), lambda: None)
        else:
            await serve.run(stack, answer, verbose=verbose, private=True)
        return is_whole


def _open_input(path: str) -> int:
    """Opens the input file for reading. Raises BatchError."""
    if path == STANDARD_INPUT:
        return 0
    try:
        return os.open(path, os.O_RDONLY)
    except OSError as error:
        raise BatchError(f"{path} cannot be read: {error.strerror}") from error


def _count_lines(fd: int) -> int | None:
    """Counts the lines of a file from its current position. Returns None for a pipe or a terminal, which can be read
    only once."""
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        return None
    start = os.lseek(fd, 0, os.SEEK_CUR)
    count, last = 0, b"\n"
    while block := os.read(fd, 1024 * 1024):
        count += block.count(b"\n")
        last = block[-1:]
    os.lseek(fd, start, os.SEEK_SET)
    return count + (last != b"\n")


async def _chain(first: Line, rest: AsyncIterator[Line]) -> AsyncIterator[Line]:
    yield first
    async for line in rest:
        yield line


def _default_concurrency(config: BatchConfig, stack: Stack) -> int:
    """Returns the default of --max-concurrency. For run-batch's own stack, this is twice --max-num-seqs for each
    worker, or the length of the schedulers' queues if that is less. So about as many requests wait as run."""
    if config.base_url:
        return DEFAULT_CONCURRENCY
    scheduled = 2 * sum(group.config.max_num_seqs * group.count for group in stack.of_kind("worker"))
    queued = sum(group.config.max_num_queued_reqs * group.count for group in stack.of_kind("scheduler"))
    return int(min(scheduled, queued))


def _summary(config: BatchConfig, tally: Tally, is_whole: bool, seconds: float) -> str:
    name = "standard output" if config.output_file == STANDARD_OUTPUT else config.output_file
    before = f", {tally.kept} of them from an earlier run" if tally.kept else ""
    text = f"{name}: {tally.written} answers{before}; {tally.failed} failed; {seconds:.1f} s"
    return text if is_whole else f"{text}\nsome requests have no answer; start it again with the same files to continue"


def _parser() -> argparse.ArgumentParser:
    parser = OptionParser(
        prog=PROG,
        usage="quire run-batch -i FILE -o FILE [--model MODEL | --base-url URL] [options]",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    group = parser.add_argument_group("run-batch")
    metadata = {field.name: field.metadata for field in fields(BatchConfig)}
    for letter, name in (("-i", "input_file"), ("-o", "output_file")):
        flag = f"--{name.replace('_', '-')}"
        group.add_argument(
            letter, flag, dest=name, metavar="FILE", default=argparse.SUPPRESS, help=metadata[name]["help"]
        )
    group.add_argument(
        "--model",
        metavar="MODEL",
        default=argparse.SUPPRESS,
        help="Model of the stack that run-batch starts, as for quire serve.",
    )
    add_options(group, BatchConfig)
    serve.add_stack_options(parser, WIRING | ADDRESS)
    return parser
