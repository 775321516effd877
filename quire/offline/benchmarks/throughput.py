"""`quire bench throughput`: measures how many tokens per second a model on this host generates when all prompts are
submitted at once."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from quire.offline.benchmarks.command import random_tokens, run, sharegpt_questions
from quire.offline.llm import LLM
from quire.offline.sampling_params import SamplingParams
from shared.config import ConfigError, option


@dataclass(frozen=True, slots=True)
class ThroughputConfig:
    backend: str = option("vllm", "vllm's name for its own engine; here it is Quire.", choices=("vllm",))
    dataset_name: str = option("random", "Source of the prompts.", choices=("random", "sharegpt"))
    dataset_path: str = option("", "ShareGPT's JSON file. If left out, it is downloaded from the Hugging Face hub.")
    input_len: int | None = option(None, "Tokens of a random prompt. If left out, 1024.", minimum=1)
    output_len: int | None = option(
        None, "Tokens to generate. If left out, 128, or as many as the answer in ShareGPT's file has.", minimum=1
    )
    num_prompts: int = option(1000, "Number of prompts.", minimum=1)
    n: int = option(1, "Answers for each prompt.", minimum=1, maximum=128)
    seed: int = option(0, "Random seed for prompts and answers.")
    output_json: str = option("", "File for the results.")

    def __post_init__(self) -> None:
        if self.dataset_name == "sharegpt" and self.input_len is not None:
            raise ConfigError("--input-len is for random prompts; ShareGPT's have their own lengths")
        if self.dataset_name == "random" and self.dataset_path:
            raise ConfigError("--dataset-path is for --dataset-name sharegpt")


def main(argv: Sequence[str]) -> int:
    return run(
        "quire bench throughput",
        "Measures how many tokens per second a model on this host generates when all prompts are submitted at once. "
        "Takes the options of quire serve.",
        ThroughputConfig,
        argv,
        measure,
    )


def measure(config: ThroughputConfig, llm: LLM) -> None:
    if config.dataset_name == "sharegpt":
        prompts = sharegpt_questions(llm, config.dataset_path, config.num_prompts, config.output_len, config.seed)
    else:
        lengths = config.input_len or 1024, config.output_len or 128
        prompts = random_tokens(llm, config.num_prompts, *lengths, config.seed)
    params = [
        SamplingParams(n=config.n, temperature=1.0, ignore_eos=True, max_tokens=prompt.max_tokens, seed=config.seed)
        for prompt in prompts
    ]
    started = time.perf_counter()
    outputs = llm.generate([prompt.content for prompt in prompts], params)
    seconds = time.perf_counter() - started
    num_prompt_tokens = sum(len(output.prompt_token_ids or ()) for output in outputs)
    num_output_tokens = sum(len(choice.token_ids) for output in outputs for choice in output.outputs)
    total = num_prompt_tokens + num_output_tokens
    print(
        f"Throughput: {len(outputs) / seconds:.2f} requests/s, {total / seconds:.2f} total tokens/s, "
        f"{num_output_tokens / seconds:.2f} output tokens/s"
    )
    print(f"Total num prompt tokens:  {num_prompt_tokens}")
    print(f"Total num output tokens:  {num_output_tokens}")
    if config.output_json:
        result = {
            "elapsed_time": seconds,
            "num_requests": len(outputs),
            "total_num_tokens": total,
            "requests_per_second": len(outputs) / seconds,
            "tokens_per_second": total / seconds,
        }
        Path(config.output_json).write_text(json.dumps(result, indent=4) + "\n")
