"""Compares attention's stored launch configurations with others. Faster ones should be stored instead."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from benchmarks.gpu.attention import copies_of
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.figures import Figure
from benchmarks.gpu.paged import Load, PagedLoad
from services.worker.ops.triton.attention import tuning
from services.worker.ops.triton.attention.tuning import TileConfig, Tuning

DECODES = ((1, 512), (1, 8192), (8, 1024), (32, 575), (8, 4096), (32, 4096), (128, 575))
PROMPTS = ((1, 4096), (8, 1024))
REPEATS = 10
_DECODE_TILES = (
    (32, 4, 3), (32, 4, 5), (64, 4, 2), (64, 4, 3), (64, 4, 4), (64, 8, 3), (128, 4, 2), (128, 4, 3), (128, 8, 3),
)  # fmt: skip
_PROMPT_TILES = (
    (64, 64, 4, 3), (64, 128, 4, 2), (64, 128, 8, 2), (128, 64, 4, 3), (128, 64, 8, 2), (128, 64, 8, 3),
    (128, 64, 8, 4), (128, 128, 8, 2), (128, 128, 8, 3),
)  # fmt: skip


def decode_candidates(stored: Tuning) -> Iterator[Tuning]:
    """Yields the stored one first, then others with other tiles, numbers of parallel programs, or parts."""
    yield stored
    for block_n, num_warps, num_stages in _DECODE_TILES:
        yield replace(stored, decode=TileConfig(16, block_n, num_warps, num_stages))
    for programs in (1, 2, 4, 6):
        yield replace(stored, programs_per_processor=programs)
    for tiles_per_part in (1, 2, 4, 8, 16, 64):
        yield replace(stored, tiles_per_part=tiles_per_part)


def prompt_candidates(stored: Tuning) -> Iterator[Tuning]:
    yield stored
    for tile in _PROMPT_TILES:
        yield replace(stored, ragged=TileConfig(*tile))


def measure(bench: Bench) -> Iterator[Figure]:
    shape, ceilings = bench.attention_shape, bench.ceilings
    capability = 90
    if bench.device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(bench.device)
        capability = 10 * major + minor
    stored = tuning.stored(capability, shape.head_dim, shape.dtype.itemsize, shape.kv_dtype.itemsize)
    decodes, prompts = (((1, 20),), ((1, 8),)) if bench.dry_run else (DECODES, PROMPTS)
    for batch, length in decodes:
        load = Load(batch, length, 1)
        floor = load.kv_bytes(shape) / ceilings.read
        yield from _compare(bench, load, f"decode {batch} x {length}", list(decode_candidates(stored)), floor)
    for batch, length in prompts:
        load = Load(batch, length, length)
        floor = load.flop(shape) / ceilings.rates["bf16"]
        yield from _compare(bench, load, f"prompt {batch} x {length}", list(prompt_candidates(stored)), floor)


def _compare(bench: Bench, load: Load, name: str, candidates: list[Tuning], floor: float) -> Iterator[Figure]:
    """Measures the candidates and yields their figures, fastest first."""
    paged = PagedLoad(bench.attention_shape, load, bench.device, copies_of(bench, load))
    if bench.dry_run:
        candidates = candidates[:2]
    found = []
    for index, candidate in enumerate(candidates):
        described = _describe(candidate, decode=load.queries == 1) + (" (stored)" if index == 0 else "")
        try:
            taken = bench.clock.in_graph(paged.works(candidate), REPEATS) * 1e6
        except Exception as error:  # skip candidates that do not compile or need too much shared memory
            print(f"{name}, {described}: {type(error).__name__}: {str(error).splitlines()[0][:100]}")
            continue
        found.append(Figure(name, taken, "us", floor * 1e6, described))
    yield from sorted(found, key=lambda figure: figure.value or 0.0)


def _describe(candidate: Tuning, *, decode: bool) -> str:
    tile = candidate.decode if decode else candidate.ragged
    described = f"tiles {tile.block_m} x {tile.block_n}, warps {tile.num_warps}, stages {tile.num_stages}"
    if decode:
        described += (
            f", {candidate.programs_per_processor} programs, parts of {candidate.tiles_per_part or 'chosen'} tiles"
        )
    return described
