"""Each kernel's share of a decode step and of a prompt's step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.figures import Figure
from benchmarks.gpu.sequences import Sequences
from benchmarks.gpu.trace import GROUPS, Activity, group_of, trace

DECODES = ((1, 512), (32, 512), (128, 512), (32, 4096))
STEPS = 10
WARM_UP = 6
PROMPT = 4096
LISTED = 12  # kernels named one by one


def measure(bench: Bench) -> Iterator[Figure]:
    decodes, prompt = (((2, 20),), 24) if bench.dry_run else (DECODES, PROMPT)
    longest = max(prompt, max(context for _, context in decodes))
    with bench.engine(longest + WARM_UP + STEPS, max(batch for batch, _ in decodes), prompt) as engine:
        floors = bench.floors
        for batch, context in decodes:
            sequences = Sequences(engine.runner, batch, context, WARM_UP + STEPS)
            sequences.start()
            sequences.run(sequences.decode_plans(WARM_UP))
            plans = sequences.decode_plans(STEPS)
            ran = trace(partial(sequences.run, plans), bench.device)
            context_then = context + WARM_UP + STEPS / 2
            least = {
                "attention": floors.kv_bytes(batch * context_then) / floors.ceilings.read * 1e6,
                "products": floors.weight_bytes / floors.ceilings.read * 1e6,
            }
            yield from shares(f"decode {batch} x {context}", ran, STEPS, least)
        sequences = Sequences(engine.runner, 1, prompt, 1)
        tokens = sequences.random_tokens(prompt)
        sequences.run(sequences.prompt_plans(tokens))
        ran = trace(lambda: sequences.run(sequences.prompt_plans(tokens)), bench.device)
        yield from shares(f"prompt of {prompt}", ran, 1, {})


def shares(step: str, ran: Sequence[Activity], num_steps: int, least: Mapping[str, float]) -> Iterator[Figure]:
    """Microseconds per step: by group with its floor, where it has one, then the longest kernels by name."""
    groups: dict[str, list[float]] = defaultdict(list)
    names: dict[str, list[float]] = defaultdict(list)
    for activity in ran:
        groups[group_of(activity.name)].append(activity.end - activity.start)
        names[activity.name].append(activity.end - activity.start)
    total = sum(map(sum, groups.values())) or 1.0
    for group in GROUPS:
        if group in groups:
            yield _share(f"{step}: {group}", groups[group], total, num_steps, least.get(group))
    for name in sorted(names, key=lambda name: -sum(names[name]))[:LISTED]:
        yield _share(f"{step}: ({group_of(name)}) {name[:60]}", names[name], total, num_steps, None)


def _share(name: str, times: Sequence[float], total: float, num_steps: int, least: float | None) -> Figure:
    note = f"{sum(times) / total:.1%} of the kernels' time, {len(times) / num_steps:g} launches"
    return Figure(name, sum(times) / num_steps, "us", least, note)
