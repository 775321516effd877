"""Compares Quire's packed GEMM with MKL's and with memory bandwidth: `python -m benchmarks.cpu_gemm [--threads N]`.

Each shape is timed over several weights that together exceed the last-level cache, as the layers of a model do. The
implementations run alternately, so that a noisy machine affects all of them. Prints the best of the rounds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from services.worker.ops.cpu.ops import CPUOps

SHAPES = ((960, 576), (576, 576), (3072, 576), (576, 1536), (49152, 576))  # (out, in) of SmolLM2-135M
ROWS = (1, 8, 32, 128)
WORKING_SET = 160 << 20  # bytes of float32 weights per shape


def read_bandwidth() -> float:
    """Returns the bytes per second of a sum over memory that is larger than the caches."""
    data = torch.ones(WORKING_SET // 2)
    return WORKING_SET * 2 / min(seconds(lambda: float(data.sum())) for _ in range(7))


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def contestants(weights: list[Tensor], rows: int) -> dict[str, list[Callable[[Tensor], Tensor]]]:
    ops = CPUOps()
    calls: dict[str, list[Callable[[Tensor], Tensor]]] = {
        "f32": [ops.linear(weight) for weight in weights],
        "bf16": [ops.linear(weight.bfloat16()) for weight in weights],
    }
    if torch._C.has_mkl:
        packed = [torch.ops.mkl._mkl_reorder_linear_weight(weight, rows) for weight in weights]
        calls["mkl"] = [
            partial(_multiply_by_mkl, packed=reordered, weight=weight, rows=rows)
            for weight, reordered in zip(weights, packed, strict=True)
        ]
    calls["torch"] = [partial(torch.nn.functional.linear, weight=weight) for weight in weights]
    return calls


def _multiply_by_mkl(x: Tensor, packed: Tensor, weight: Tensor, rows: int) -> Tensor:
    product: Tensor = torch.ops.mkl._mkl_linear(x, packed, weight, None, rows)
    return product


def _call_all(functions: Sequence[Callable[[Tensor], Tensor]], x: Tensor) -> None:
    for function in functions:
        function(x)


def measure(out_features: int, in_features: int, rows: int, rounds: int) -> dict[str, float]:
    """Returns the fastest time of one multiplication in seconds, by implementation."""
    count = max(2, min(40, WORKING_SET // (out_features * in_features * 4)))
    weights = [torch.randn(out_features, in_features) for _ in range(count)]
    x = torch.randn(rows, in_features)
    times: dict[str, list[float]] = {}
    calls = contestants(weights, rows)
    for _ in range(rounds):
        for name, functions in calls.items():
            times.setdefault(name, []).append(seconds(partial(_call_all, functions, x)) / count)
    return {name: min(values) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    bandwidth = read_bandwidth()
    print(f"{CPUOps().level}, {arguments.threads} threads, memory read at {bandwidth / 1e9:.1f} GB/s")
    print("GFLOP/s; 'of read': weight bytes per second over the read bandwidth; 'vs MKL': MKL's time over ours")
    print(f"{'out x in':>12} {'rows':>5} {'f32':>7} {'bf16':>7} {'mkl':>7} {'torch':>7}"
          f" {'of read':>8} {'bf16':>6} {'vs MKL':>7} {'bf16':>6}")  # fmt: skip
    for out_features, in_features in SHAPES:
        for rows in ROWS:
            times = measure(out_features, in_features, rows, arguments.rounds)
            work = 2e-9 * out_features * in_features * rows
            passes = out_features * in_features * 4 / bandwidth  # seconds to read the weight once
            rate = {name: work / value for name, value in times.items()}
            mkl = times.get("mkl", float("nan"))
            print(f"{out_features:>6}x{in_features:<5} {rows:>5} {rate['f32']:>7.1f} {rate['bf16']:>7.1f}"
                  f" {rate.get('mkl', float('nan')):>7.1f} {rate['torch']:>7.1f}"
                  f" {passes / times['f32']:>8.2f} {passes / 2 / times['bf16']:>6.2f}"
                  f" {mkl / times['f32']:>7.2f} {mkl / times['bf16']:>6.2f}")  # fmt: skip


if __name__ == "__main__":
    main()
