"""Measures attention alone and torch's attention: decodes by bytes of KV per launch, prompts by length."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.figures import Figure
from benchmarks.gpu.paged import Load, PagedLoad, Work, peers

# (sequences, tokens per sequence). For Llama-3.1-8B in 16 bits, 1,024 tokens have 4 MiB of KV per layer.
DECODES = (
    (1, 512), (1, 4096), (1, 8192), (1, 32_768), (8, 512), (8, 1024), (8, 4096), (32, 256), (32, 512), (32, 1024),
    (32, 4096), (128, 256), (128, 1024), (256, 512), (256, 1024),
)  # fmt: skip
PROMPTS = ((1, 1024), (1, 4096), (1, 16_384), (8, 512), (8, 2048))
ROTATED_BYTES = 1 << 30
REPEATS = 20


def measure(bench: Bench) -> Iterator[Figure]:
    shape = bench.attention_shape
    ceilings = bench.ceilings
    decodes, prompts = (((2, 20),), ((1, 8),)) if bench.dry_run else (DECODES, PROMPTS)
    for batch, length in sorted(decodes, key=lambda load: load[0] * load[1]):
        load = Load(batch, length, 1)
        num_bytes = load.kv_bytes(shape)
        floor = num_bytes / ceilings.read
        yield from _compare(bench, load, f"{num_bytes / 2**20:.4g} MiB: decode {batch} x {length}", floor)
    for batch, length in prompts:
        load = Load(batch, length, length)
        yield from _compare(bench, load, f"prompt {batch} x {length}", load.flop(shape) / ceilings.rates["bf16"])


def _compare(bench: Bench, load: Load, name: str, floor: float) -> Iterator[Figure]:
    num_copies = copies_of(bench, load)
    paged = PagedLoad(bench.attention_shape, load, bench.device, num_copies)
    yield _timed(bench, f"{name}", paged.works(), floor)
    yield _timed(bench, f"{name}, batch-invariant", paged.works(batch_invariant=True), floor)
    del paged
    for peer, works in peers(bench.attention_shape, load, bench.device, num_copies):
        yield _timed(bench, f"{name}, {peer}", works, floor)


def copies_of(bench: Bench, load: Load) -> int:
    """Returns a number of copies that together are much larger than the L2 cache."""
    return 1 if bench.dry_run else min(64, max(1, ROTATED_BYTES // load.kv_bytes(bench.attention_shape)))


def _timed(bench: Bench, name: str, works: list[Work], floor: float) -> Figure:
    try:
        taken = bench.clock.in_graph(works, REPEATS)
    except Exception as error:  # a peer that fails on this machine must not end the benchmark
        return Figure(name, None, "us", floor * 1e6, f"{type(error).__name__}: {str(error).splitlines()[0][:100]}")
    return Figure(name, taken * 1e6, "us", floor * 1e6)
