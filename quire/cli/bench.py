"""`quire bench`: measures a server with the options and the metrics of `vllm bench serve`, or starts a benchmark that
measures a model without a server."""

from __future__ import annotations

import argparse
import asyncio
import gc
import importlib
import json
import math
import os
import random
import re
import resource
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from quire.bench.arrivals import arrival_times
from quire.bench.load import Load, Request
from quire.bench.metrics import LATENCIES, summarize
from quire.bench.prompts import (
    SAMPLE_TEXT,
    DatasetError,
    Prompt,
    Turn,
    random_prompts,
    request_body,
    sharegpt_prompts,
)
from quire.bench.report import Traffic, file_name, result, table
from quire.bench.server import NotServedError, Server, ServerError
from quire.bench.session import open_session
from quire.bench.sharegpt import read_turns
from quire.cli.server_url import check_url, server_root
from shared.config import ConfigError, option, resolve, stop

PROG = "quire bench serve"
# Modules of the benchmarks that start their own model. They import more than `serve` needs.
OWN_MODEL = {"throughput": "quire.offline.benchmarks.throughput", "latency": "quire.offline.benchmarks.latency"}
OBJECTIVES = ("ttft", "tpot", "e2el")
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class BenchConfig:
    base_url: str = option("", "URL of the server, with or without /v1. If left out, http://HOST:PORT.")
    host: str = option("127.0.0.1", "Host of the server.")
    port: int = option(8000, "Port of the server.", minimum=1, maximum=65535)
    backend: str = option(
        "openai",
        "Kind of the server: openai and vllm mean completions, openai-chat chats.",
        choices=("openai", "vllm", "openai-chat"),
    )
    endpoint: str | None = option(
        None, f"Path to send requests to. If left out, {COMPLETIONS}, or for openai-chat {CHAT}.",
        choices=(COMPLETIONS, CHAT),
    )  # fmt: skip
    model: str = option("", "Model to measure. If left out, the server's first one.")
    api_key: tuple[str, ...] = option((), "API key of the server, if it needs one.", secret=True)
    dataset_name: str = option("random", "Source of the prompts.", choices=("random", "sharegpt"))
    dataset_path: str = option("", "ShareGPT's JSON file. If left out, it is downloaded from the Hugging Face hub.")
    input_len: int | None = option(None, "The same as --random-input-len.", minimum=1)
    output_len: int | None = option(None, "The same as --random-output-len and --sharegpt-output-len.", minimum=1)
    random_input_len: int = option(1024, "Length of a random prompt in tokens.", minimum=1)
    random_output_len: int = option(128, "Tokens to generate for a random prompt.", minimum=1)
    random_range_ratio: float = option(
        0.0, "Fraction, below 1, by which both lengths vary around the given ones.", minimum=0
    )
    random_vocab_size: int | None = option(
        None,
        "Random prompts consist of token ids below this one. If left out, of the tokens that the server's "
        "/tokenize returns for a text without special tokens. For chats, /detokenize turns prompts into text.",
        minimum=1,
    )
    sharegpt_output_len: int | None = option(
        None, "Tokens to generate for a ShareGPT prompt. If left out, as many as the answer in the file has.", minimum=1
    )
    num_prompts: int = option(1000, "Requests to send.", minimum=1)
    num_warmups: int = option(
        0, "Warm-up requests before the measurement. They have other prompts and are not measured.", minimum=0
    )
    request_rate: float = option(math.inf, "Requests per second on average; inf sends all of them at once.")
    burstiness: float = option(
        1.0,
        "Shape of the gamma distribution of gaps between arrivals: 1 is a Poisson process, less is burstier, "
        "more is more even.",
    )
    max_concurrency: int | None = option(
        None, "Maximum number of requests in progress at a time. If left out, no limit.", minimum=1
    )
    seed: int = option(0, "Random seed for prompts and arrival times.")
    ignore_eos: bool | None = option(
        None, "Ignore the model's end tokens and generate the full length. If left out, for random prompts only."
    )
    temperature: float | None = option(
        None, "Sampling temperature; 0 is greedy. If left out, the server's default.", minimum=0
    )
    percentile_metrics: str = option(",".join(LATENCIES), "Latencies to report, separated by commas.")
    metric_percentiles: str = option("99", "Percentiles of the latencies to report, separated by commas.")
    goodput: tuple[str, ...] = option(
        (),
        f"Latency objective, NAME:MILLISECONDS; NAME is one of {', '.join(OBJECTIVES)}. Repeatable. Goodput counts "
        "the requests that meet all objectives.",
    )
    save_result: bool = option(False, "Save the results as JSON.")
    result_dir: str = option("", "Directory for the results. If left out, the current one.")
    result_filename: str = option(
        "", "File name of the results. If left out, it is made of backend, rate, model and time."
    )

    @property
    def url(self) -> str:
        return server_root(self.base_url) or f"http://{self.host}:{self.port}"

    @property
    def path(self) -> str:
        return self.endpoint or (CHAT if self.backend == "openai-chat" else COMPLETIONS)


@dataclass(frozen=True, slots=True)
class Figures:
    """What to report: names of latency metrics, and percentiles. `objectives`: the goodput objectives, as limits in
    milliseconds by the name of the latency."""

    latencies: tuple[str, ...]
    percents: tuple[float, ...]
    objectives: dict[str, float]


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="quire bench", description="Measures a server, or a model without one.")
    parser.add_argument(
        "benchmark",
        choices=("serve", *OWN_MODEL),
        help="serve: a running server under load; throughput: all prompts at once on a model of its own; latency: one "
        "batch after the other. quire bench NAME --help lists the options",
    )
    name = parser.parse_args(argv[:1]).benchmark
    if name in OWN_MODEL:
        return int(importlib.import_module(OWN_MODEL[name]).main(argv[1:]))
    config = resolve(BenchConfig, argv[1:], prog=PROG, description="Measures any server with OpenAI's API under load.")
    key = config.api_key[0] if config.api_key else os.environ.get("OPENAI_API_KEY", "")
    try:
        if not re.fullmatch("[!-~]*", key):
            raise ConfigError("the API key has a character that an HTTP header cannot contain")
        figures = _check(config)
        turns = read_turns(config.dataset_path) if config.dataset_name == "sharegpt" else []
    except (ConfigError, DatasetError) as error:
        stop(PROG, str(error))
    _raise_file_limit()
    try:
        load, model, is_whole = asyncio.run(_measure(config, key, turns))
    except (ServerError, DatasetError) as error:
        print(f"{PROG}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    is_saved = _tell(config, figures, load, model)
    if not is_whole:
        return 130
    return 0 if is_saved and any(not measurement.error for measurement in load.measurements) else 1


def _check(config: BenchConfig) -> Figures:
    """Checks the options that `resolve` cannot check, and parses the options that hold lists. Raises ConfigError."""
    check_url(config.url)
    for name, value in (("--request-rate", config.request_rate), ("--burstiness", config.burstiness)):
        if not value > 0:
            raise ConfigError(f"{name} is {value}: use more than 0")
    if not config.random_range_ratio < 1:
        raise ConfigError(f"--random-range-ratio is {config.random_range_ratio}: use less than 1")
    if config.dataset_path and config.dataset_name != "sharegpt":
        raise ConfigError("--dataset-path is for --dataset-name sharegpt")
    latencies = tuple(name for name in config.percentile_metrics.split(",") if name)
    if unknown := sorted(set(latencies) - set(LATENCIES)):
        raise ConfigError(f"--percentile-metrics names {unknown[0]!r}: use some of {','.join(LATENCIES)}")
    return Figures(latencies, _percents(config.metric_percentiles), dict(map(_objective, config.goodput)))


def _percents(text: str) -> tuple[float, ...]:
    try:
        percents = tuple(float(part) for part in text.split(",") if part)
    except ValueError:
        percents = (math.nan,)
    if not all(0 <= percent <= 100 for percent in percents):
        raise ConfigError(f"--metric-percentiles is {text!r}: use numbers from 0 to 100, such as 50,90,99")
    return percents


def _objective(text: str) -> tuple[str, float]:
    name, _, limit = text.partition(":")
    try:
        milliseconds = float(limit)
    except ValueError:
        milliseconds = math.nan
    if name not in OBJECTIVES or not milliseconds >= 0:
        raise ConfigError(f"--goodput is {text!r}: use NAME:MILLISECONDS with {', '.join(OBJECTIVES)} as NAME")
    return name, milliseconds


async def _measure(config: BenchConfig, key: str, turns: Sequence[Turn]) -> tuple[Load, str, bool]:
    """Runs the benchmark. Returns the Load with its measurements, the model's name, and whether the benchmark ran to
    its end. Raises ServerError, DatasetError."""
    async with open_session(key) as session:
        server = Server(session, config.url)
        model = config.model or await server.first_model()
        options, is_chat = _options(config), config.path == CHAT
        requests = [
            Request(config.url + config.path, request_body(prompt, model, is_chat, options), prompt.num_tokens)
            for prompt in await _prompts(config, server, model, turns)
        ]
        measured, warmups = requests[: config.num_prompts], requests[config.num_prompts :]
        times = arrival_times(len(measured), config.request_rate, config.burstiness, random.Random(config.seed))
        await Load(session, config.max_concurrency, lambda: None).run(warmups, [0.0] * len(warmups))
        columns = TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        is_seen = sys.stderr.isatty()
        with Progress(*columns, console=Console(stderr=True), disable=not is_seen, refresh_per_second=4) as progress:
            bar = progress.add_task(f"{model} at {config.url}", total=len(measured))
            load = Load(session, config.max_concurrency, lambda: progress.advance(bar))
            return load, model, await _until_interrupted(load, measured, times)


def _options(config: BenchConfig) -> dict[str, object]:
    """Returns the sampling fields of every request's body. A field that is left out has the server's default."""
    options: dict[str, object] = {}
    if config.ignore_eos or (config.ignore_eos is None and config.dataset_name == "random"):
        options["ignore_eos"] = True
    if config.temperature is not None:
        options["temperature"] = config.temperature
    return options


async def _prompts(config: BenchConfig, server: Server, model: str, turns: Sequence[Turn]) -> list[Prompt]:
    """Returns the prompts to measure, followed by the warm-up prompts. Raises ServerError, DatasetError."""
    rng = random.Random(config.seed)
    count = config.num_prompts + config.num_warmups
    if config.dataset_name == "sharegpt":
        answer_len = config.sharegpt_output_len or config.output_len

        async def num_tokens(text: str) -> int:
            return len(await server.tokenize(model, text))

        try:
            await num_tokens(SAMPLE_TEXT)
        except NotServedError as error:
            if answer_len is None:
                raise ServerError(f"{error}; if the server has no /tokenize, set --sharegpt-output-len") from None
            return await sharegpt_prompts(turns, count, answer_len, None, rng)
        return await sharegpt_prompts(turns, count, answer_len, num_tokens, rng)
    tokens: Sequence[int]
    if config.random_vocab_size is not None:
        tokens = range(config.random_vocab_size)
    else:
        try:
            tokens = sorted(set(await server.tokenize(model, SAMPLE_TEXT, special=False)))
        except NotServedError as error:
            raise ServerError(f"{error}; if the server has no /tokenize, set --random-vocab-size") from None
    input_len, output_len = config.input_len or config.random_input_len, config.output_len or config.random_output_len
    lengths = input_len, output_len, config.random_range_ratio
    prompts = random_prompts(count, tokens, *lengths, rng)
    if config.path == CHAT:
        texts = await asyncio.gather(
            *(server.detokenize(model, prompt.content) for prompt in prompts if isinstance(prompt.content, list))
        )
        prompts = [replace(prompt, content=text) for prompt, text in zip(prompts, texts, strict=True)]
    return prompts


async def _until_interrupted(load: Load, requests: Sequence[Request], times: Sequence[float]) -> bool:
    """Runs the load and returns whether it ran to its end. Ctrl-C ends the load early; the answers that were complete
    by then are reported."""
    gc.collect()
    gc.freeze()  # Later garbage collections skip all objects that exist now, so that they pause the load only briefly.
    running = asyncio.create_task(load.run(requests, times))
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, running.cancel)
    try:
        await running
    except asyncio.CancelledError:
        return False
    finally:
        loop.remove_signal_handler(signal.SIGINT)
    return True


def _tell(config: BenchConfig, figures: Figures, load: Load, model: str) -> bool:
    """Prints the results and saves them if requested. Returns False if saving failed."""
    metrics = summarize(load.measurements, load.duration, figures.percents, figures.objectives)
    traffic = Traffic(
        backend="openai-chat" if config.path == CHAT else config.backend,
        model=model,
        num_prompts=config.num_prompts,
        request_rate=config.request_rate,
        burstiness=config.burstiness,
        max_concurrency=config.max_concurrency,
    )
    print(table(metrics, traffic, figures.latencies))
    if errors := [measurement.error for measurement in load.measurements if measurement.error]:
        print(f"{PROG}: {len(errors)} requests failed, the first: {errors[0]}", file=sys.stderr)
    if not config.save_result:
        return True
    date = time.strftime("%Y%m%d-%H%M%S")
    path = Path(config.result_dir, config.result_filename or file_name(traffic, date))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result(metrics, traffic, date), indent=2) + "\n")
    except OSError as error:
        print(f"{PROG}: the results were not saved: {error}", file=sys.stderr)
        return False
    return True


def _raise_file_limit() -> None:
    """Raises this process's limit on open files to its maximum. The limit is usually 1,024, and each connection counts
    as an open file."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
