"""Measures one engine with Llama-3.1-8B's shape and dummy weights: the first figures from a GPU rented for an hour.

The target is under six minutes. The cases share the engine and report their figures one by one. `commands.py` runs
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.cases import Case, Setting
from benchmarks.gpu.ceilings import measure as measure_ceilings
from benchmarks.gpu.decode import CHUNK, MAX_STEPS, measure_steps
from benchmarks.gpu.figures import Figure
from benchmarks.gpu.forms import FORMS, bench
from benchmarks.gpu.kernels import decode_shares, prompt_shares
from benchmarks.gpu.prefill import measure_prompts
from services.worker.startup.load import LoadedWorker


@dataclass(frozen=True, slots=True)
class Loads:
    """Batch sizes, context lengths and prompt lengths to measure."""

    batches: tuple[int, ...] = (1, 8, 32, 128)
    contexts: tuple[int, ...] = (512, 4096)
    by_kernels: tuple[tuple[int, int], ...] = ((1, 512), (32, 512), (128, 512), (128, 4096))
    prompts: tuple[int, ...] = (2048, 8192)
    chunk: int = CHUNK
    max_steps: int = MAX_STEPS


TINY = Loads((2,), (9,), ((2, 9),), (14,), 12, 16)


def cases(setting: Setting) -> Mapping[str, Callable[[], Iterable[Case]]]:
    assert setting.form is not None, "a lease measures one form"
    return {f"lease {setting.form}": partial(_cases, setting, setting.form)}


def _cases(setting: Setting, form: str) -> Iterator[Case]:
    loads = TINY if setting.dry_run else Loads()
    # No figure needs swap space, for which a worker pins 4 GiB of host memory by default.
    leased = Leased(bench(setting, FORMS[form], "llama-8b", "--swap-space", "0"), loads)
    yield Case("ceilings", lambda: measure_ceilings(leased.bench))
    yield Case("start", leased.start)
    for context in loads.contexts:
        yield Case(f"decode steps, context {context}", partial(leased.decode, context))
    for length in loads.prompts:
        yield Case(f"prefill of {length} tokens", partial(leased.prefill, length))
    for batch, context in loads.by_kernels:
        yield Case(f"kernels of a decode step, {batch} x {context}", partial(leased.decode_kernels, batch, context))
    yield Case(f"kernels of a prompt of {loads.prompts[0]}", partial(leased.prompt_kernels, loads.prompts[0]))


@dataclass(slots=True)
class Leased:
    """An engine that starts with the first case that needs it. After the loss of a process, this can be any case."""

    bench: Bench
    loads: Loads
    _engine: LoadedWorker | None = None
    _stack: ExitStack = field(default_factory=ExitStack)

    @property
    def engine(self) -> LoadedWorker:
        if self._engine is None:
            length = max(*self.loads.contexts, *self.loads.prompts) + self.loads.max_steps
            starting = self.bench.engine(length, max(self.loads.batches), self.loads.chunk)
            self._engine = self._stack.enter_context(starting)
        return self._engine

    def start(self) -> Iterator[Figure]:
        limits, speed = self.engine.runner.limits, self.engine.speed
        yield Figure("KV blocks", float(limits.num_blocks), "blocks", note=f"of {limits.block_size} tokens")
        yield Figure("a step, as the start measures it", speed.step * 1e3, "ms")

    def decode(self, context: int) -> Iterator[Figure]:
        yield from measure_steps(self.bench, self.engine, self.loads.batches, (context,))

    def prefill(self, length: int) -> Iterator[Figure]:
        yield from measure_prompts(self.bench, self.engine, (length,))

    def decode_kernels(self, batch: int, context: int) -> Iterator[Figure]:
        yield from decode_shares(self.bench, self.engine, batch, context)

    def prompt_kernels(self, length: int) -> Iterator[Figure]:
        yield from prompt_shares(self.bench, self.engine, length)
