"""`quire bench latency`: measures how long a batch of prompts takes, from its start to its last token."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from quire.bench.metrics import percentile
from quire.cli.progress_bar import progress_bar
from quire.offline.benchmarks.command import random_tokens, run
from quire.offline.llm import LLM
from quire.offline.sampling_params import SamplingParams
from shared.config import option

PERCENTS = (10, 25, 50, 75, 90, 99)


@dataclass(frozen=True, slots=True)
class LatencyConfig:
    input_len: int = option(32, "Tokens of a prompt.", minimum=1)
    output_len: int = option(128, "Tokens to generate for each prompt.", minimum=1)
    batch_size: int = option(8, "Prompts that are answered at once.", minimum=1)
    n: int = option(1, "Answers for each prompt.", minimum=1, maximum=128)
    num_iters_warmup: int = option(10, "Batches before the measurement.", minimum=0)
    num_iters: int = option(30, "Batches that are measured.", minimum=1)
    seed: int = option(0, "Random seed for the prompts.")
    output_json: str = option("", "File for the results.")


def main(argv: Sequence[str]) -> int:
    return run(
        "quire bench latency",
        "Measures how long a batch takes. Each batch has new prompts, so that none is found in the prefix cache. Takes "
        "the options of quire serve.",
        LatencyConfig,
        argv,
        measure,
    )


def measure(config: LatencyConfig, llm: LLM) -> None:
    num_batches = config.num_iters_warmup + config.num_iters
    lengths = config.input_len, config.output_len
    prompts = random_tokens(llm, num_batches * config.batch_size, *lengths, config.seed)
    params = SamplingParams(n=config.n, temperature=1.0, ignore_eos=True, max_tokens=config.output_len)
    latencies = []
    with progress_bar("batches", num_batches) as advance:
        for index in range(num_batches):
            batch = prompts[index * config.batch_size :][: config.batch_size]
            started = time.perf_counter()
            llm.generate([prompt.content for prompt in batch], params, use_tqdm=False)
            if index >= config.num_iters_warmup:
                latencies.append(time.perf_counter() - started)
            advance(1)
    average = statistics.fmean(latencies)
    percentiles = {percent: percentile(sorted(latencies), percent) for percent in PERCENTS}
    print(f"Avg latency: {average} seconds")
    for percent, seconds in percentiles.items():
        print(f"{percent}% percentile latency: {seconds} seconds")
    if config.output_json:
        result = {"avg_latency": average, "latencies": latencies, "percentiles": percentiles}
        Path(config.output_json).write_text(json.dumps(result, indent=4) + "\n")
