"""Measures each kernel's share of the time of a decode step and of a prompt."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.figures import Figure
from benchmarks.gpu.product_names import product_names
from benchmarks.gpu.sequences import Sequences
from benchmarks.gpu.trace import GROUPS, Activity, gaps, group_of, span, trace
from services.worker.startup.load import LoadedWorker

DECODES = ((1, 512), (32, 512), (128, 512), (32, 4096))
STEPS = 10
WARM_UP = 6
PROMPT = 4096
LISTED = 12  # number of kernels that are listed by name


def measure(bench: Bench) -> Iterator[Figure]:
    decodes, prompt = (((2, 20),), 24) if bench.dry_run else (DECODES, PROMPT)
    longest = max(prompt, max(context for _, context in decodes))
    with bench.engine(longest + WARM_UP + STEPS, max(batch for batch, _ in decodes), prompt) as engine:
        for batch, context in decodes:
            yield from decode_shares(bench, engine, batch, context)
        yield from prompt_shares(bench, engine, prompt)


def decode_shares(bench: Bench, engine: LoadedWorker, batch: int, context: int) -> Iterator[Figure]:
    """Measures the kernels of a decode step and the gaps between them."""
    floors = bench.floors
    warm_up, steps = (1, 2) if bench.dry_run else (WARM_UP, STEPS)
    products = product_names(bench, [batch])
    sequences = Sequences(engine.runner, batch, context, warm_up + steps)
    sequences.start()
    sequences.run(sequences.decode_plans(warm_up))
    plans = sequences.decode_plans(steps)
    ran = trace(partial(sequences.run, plans), on_gpu=bench.on_gpu)
    context_then = context + warm_up + steps / 2
    least = {
        "attention": floors.kv_bytes(batch * context_then) / floors.ceilings.read * 1e6,
        "products": floors.weight_bytes / floors.ceilings.read * 1e6,
    }
    yield from shares(f"decode {batch} x {context}", ran, steps, least, products)


def prompt_shares(bench: Bench, engine: LoadedWorker, length: int) -> Iterator[Figure]:
    """Measures the kernels of a prompt and the gaps between them."""
    products = product_names(bench, [min(length, engine.runner.limits.max_num_batched_tokens), 1])
    sequences = Sequences(engine.runner, 1, length, 1)
    tokens = sequences.random_tokens(length)
    sequences.run(sequences.prompt_plans(tokens))
    ran = trace(lambda: sequences.run(sequences.prompt_plans(tokens)), on_gpu=bench.on_gpu)
    yield from shares(f"prompt of {length}", ran, 1, {}, products)


def shares(
    step: str, ran: Sequence[Activity], num_steps: int, least: Mapping[str, float], products: Collection[str] = ()
) -> Iterator[Figure]:
    """Yields microseconds per step: of each group of kernels, with its floor if it has one, of the gaps between
    kernels, and of the slowest kernels by name."""
    groups: dict[str, list[float]] = defaultdict(list)
    names: dict[str, list[float]] = defaultdict(list)
    for activity in ran:
        groups[group_of(activity.name, products)].append(activity.end - activity.start)
        names[activity.name].append(activity.end - activity.start)
    total = sum(map(sum, groups.values())) or 1.0
    for group in GROUPS:
        if group in groups:
            yield _share(f"{step}: {group}", groups[group], total, num_steps, least.get(group))
    idle = gaps(ran)
    note = f"{sum(idle) / (span(ran) or 1.0):.1%} of the time, {len(idle) / num_steps:g} gaps"
    yield Figure(
        f"{step}: gaps", sum(idle) / num_steps, "us", note=f"{note}, the longest {max(idle, default=0):.1f} us"
    )
    for name in sorted(names, key=lambda name: -sum(names[name]))[:LISTED]:
        yield _share(f"{step}: ({group_of(name, products)}) {name[:60]}", names[name], total, num_steps, None)


def _share(name: str, times: Sequence[float], total: float, num_steps: int, least: float | None) -> Figure:
    note = f"{sum(times) / total:.1%} of the kernels' time, {len(times) / num_steps:g} launches"
    return Figure(name, sum(times) / num_steps, "us", least, note)
