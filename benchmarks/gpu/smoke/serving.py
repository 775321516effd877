"""Starts whole engines with dummy weights as a worker does, and runs every kind of step."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from tokenizers import Tokenizer

from benchmarks.gpu.asking import GREEDY, Ask, Asker
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.cases import Case, Setting, SkippedError
from benchmarks.gpu.child import describe
from benchmarks.gpu.figures import Figure
from benchmarks.gpu.forms import FORMS, MORE_FORMS, Form, bench
from benchmarks.gpu.sequences import Sequences
from services.worker.plan.sampling_params import SamplingParams
from services.worker.plan.token_constraints import TokenConstraints
from services.worker.pooling.params import PoolingParams
from services.worker.startup.load import LoadedWorker
from shared.grammar import has_library

SHAPES = {"1B": "llama-1b", "8B": "llama-8b"}
MAX_NUM_SEQS, MAX_NUM_BATCHED_TOKENS, MAX_MODEL_LEN = 128, 8192, 8192
TINY_LIMITS = (3, 12, 48)
# Maximum rank of a greedily decoded token in a prefill of the same text. Rounding may exchange close tokens. With fp8
# weights, activations and pages, an H200 gave ranks up to 24 of 128,256; a wrong kernel gives ranks in the thousands.
MOST_RANK = 8
MOST_RANK_FP8 = 64
EVERYTHING = SamplingParams(
    temperature=0.8, top_k=20, top_p=0.9, min_p=0.01, repetition_penalty=1.1, presence_penalty=0.1,
    frequency_penalty=0.1, seed=3, logit_bias=((5, 1.0),), logprobs=3,
)  # fmt: skip


def cases(setting: Setting) -> Mapping[str, Callable[[], Iterable[Case]]]:
    """Returns the groups. Engines that run in parallel get a fixed number of blocks; the `alone` ones measure the
    device's memory."""
    found: dict[str, Callable[[], Iterable[Case]]] = {}
    for name in FORMS if setting.form is None else (setting.form,):
        for size in ("8B",) if setting.dry_run else SHAPES:
            found[f"engine {size} {name}"] = partial(_of_engine, setting, FORMS[name], size)
    if setting.form is None:
        for name, form in MORE_FORMS.items():
            if not (setting.dry_run and form.dtype != "bfloat16"):  # a dry run computes in float32 only
                found[f"engine 1B {name}"] = partial(_of_engine, setting, form, "1B")
    if not setting.dry_run:
        floats = partial(_of_engine, setting, FORMS["bf16"])
        found["engine 1B bf16, batch-invariant"] = partial(floats, "1B", "--batch-invariant", swaps=False)
        found["engine 1B bf16, eager"] = partial(floats, "1B", "--enforce-eager", swaps=False)
        found["alone: engine 8B bf16"] = partial(floats, "8B", blocks=None, swaps=False)
    return found


def _of_engine(
    setting: Setting, form: Form, size: str, *arguments: str, blocks: int | None = 4096, swaps: bool = True
) -> Iterator[Case]:
    """Yields the cases of one engine. `blocks`: number of KV blocks; None: the worker determines it from the free
    memory. `swaps`: whether to test swapping, which needs pinned host memory."""
    arguments += ("--swap-space", "0.5" if swaps else "0")
    if blocks is not None and not setting.dry_run:
        arguments += ("--num-gpu-blocks-override", str(blocks))
    tried = Tried(bench(setting, form, SHAPES[size], *arguments), setting.dry_run)
    yield Case("starts", tried.start)
    yield Case("greedy decodes agree with prefill", tried.greedy)
    yield Case("seeds repeat their tokens", tried.seeds)
    yield Case("penalties, biases, cuts and logprobs", tried.everything)
    yield Case("masks", tried.masks)
    yield Case("a grammar", tried.grammar)
    yield Case("prompt logprobs", tried.prompt_logprobs)
    yield Case("embeddings", tried.embeddings)
    if swaps:
        yield Case("swap to the host and back", tried.swap)
    yield Case("copied blocks, and a decode of every graph", tried.decodes)


@dataclass(slots=True)
class Tried:
    """An engine that lives until its process ends. It starts with the first case that needs it. After the loss of a
    process, this is not the case "starts"."""

    bench: Bench
    dry_run: bool
    _engine: LoadedWorker | None = None
    _problem: str | None = None  # the reason why the engine did not start
    _stack: ExitStack = field(default_factory=ExitStack)

    def start(self) -> Iterator[Figure]:
        blocks = self._started.runner.limits.num_blocks
        yield Figure(f"{self.bench.name}: KV blocks", float(blocks), "blocks", note="the engine has started")

    def greedy(self) -> float:
        """Checks that every decoded token is among the most likely ones in a prefill of the same text."""
        asks = [Ask(prompt, self._num_outputs) for prompt in self._prompts()]
        self._run(asks)
        sampling = SamplingParams(temperature=0.0, prompt_logprobs=1)
        again = [Ask([*ask.prompt, *ask.output], 1, sampling, prompt_logprobs_from=len(ask.prompt)) for ask in asks]
        self._run(again)
        worst = max(rank for ask in again for rank in ask.prompt_ranks)
        if worst > (MOST_RANK_FP8 if self.bench.quantization == "fp8" else MOST_RANK):
            raise AssertionError(f"a decoded token has rank {worst} in the prefill of the same text")
        return float(worst - 1)

    def seeds(self) -> None:
        twice = [
            [Ask(prompt, self._num_outputs, SamplingParams(seed=7)) for prompt in self._prompts()] for _ in range(2)
        ]
        for asks in twice:
            self._run(asks)
        if [ask.output for ask in twice[0]] != [ask.output for ask in twice[1]]:
            raise AssertionError("equal seeds sampled different tokens")

    def everything(self) -> None:
        self._run([Ask(prompt, self._num_outputs, EVERYTHING) for prompt in self._prompts()])
        biased = SamplingParams(temperature=0.0, logit_bias=((11, 100.0),))
        asks = [Ask(prompt, 3, biased) for prompt in self._prompts()]
        self._run(asks)
        if any(ask.output != [11] * 3 for ask in asks):
            raise AssertionError("the token with a bias of 100 was not sampled")
        given = SamplingParams(temperature=0.0, logprobs=0, logprob_token_ids=(7, 31))
        self._run([Ask(prompt, 3, given) for prompt in self._prompts()])

    def masks(self) -> None:
        allowed = TokenConstraints(allowed_token_ids=(5, 9, 33))
        asks = [Ask(prompt, self._num_outputs, SamplingParams(seed=3), allowed) for prompt in self._prompts()]
        self._run(asks)
        if any({*ask.output} - {5, 9, 33} for ask in asks):
            raise AssertionError("a token was sampled that is not allowed")

    def grammar(self) -> None:
        if not has_library():
            raise SkippedError("the package llguidance, which compiles grammars, is not installed")
        grammar = TokenConstraints(grammar="start: /[0-9]{64}/")
        asks = [Ask(prompt, self._num_outputs, GREEDY, grammar) for prompt in self._prompts()]
        self._run(asks)
        tokenizer = Tokenizer.from_buffer(self._started.model.tokenizer.tokenizer_json)
        for ask in asks:
            text = tokenizer.decode(ask.output)
            if not (text.isascii() and text.isdigit()):
                raise AssertionError(f"the grammar allows only digits, but {text!r} was sampled")

    def prompt_logprobs(self) -> None:
        sampling = SamplingParams(temperature=0.0, prompt_logprobs=5)
        asks = [Ask(prompt, 1, sampling, prompt_logprobs_from=1) for prompt in self._prompts() if len(prompt) > 1]
        self._run(asks)
        for ask in asks:
            values = np.array(ask.prompt_logprobs)
            if len(values) != len(ask.prompt) - 1 or not (np.isfinite(values) & (values <= 1e-3)).all():
                raise AssertionError(f"{len(values)} log probabilities of {len(ask.prompt)} tokens: {values[:5]}")

    def embeddings(self) -> None:
        asks = [Ask(prompt, 0, pooling=PoolingParams()) for prompt in self._prompts()]
        self._run(asks)
        for ask in asks:
            if ask.embedding is None or abs(float(np.linalg.norm(ask.embedding)) - 1) > 1e-3:
                raise AssertionError("an embedding's length is not 1")

    def swap(self) -> None:
        undisturbed, swapped = ([Ask(prompt, self._num_outputs) for prompt in self._prompts()] for _ in range(2))
        self._run(undisturbed)
        Asker(self._started.runner).run(swapped, swap_after=self._num_outputs // 2 + 1)
        if [ask.output for ask in undisturbed] != [ask.output for ask in swapped]:
            raise AssertionError("the tokens differ after the blocks were swapped out and in")

    def decodes(self) -> Iterator[Figure]:
        runner = self._started.runner
        buckets = runner.graph_buckets
        context = 9 if self.dry_run else 64
        for count in buckets:
            sequences = Sequences(runner, count, context, 4)
            sequences.start()
            sequences.run(sequences.decode_plans(3))
        runner.reset()
        yield Figure(f"{self.bench.name}: numbers of sequences", float(len(buckets)), "sizes")

    def _run(self, asks: list[Ask]) -> None:
        Asker(self._started.runner).run(asks)

    @property
    def _num_outputs(self) -> int:
        return 3 if self.dry_run else 8

    @property
    def _started(self) -> LoadedWorker:
        if self._problem is not None:
            raise RuntimeError(f"the engine did not start: {self._problem}")
        if self._engine is None:
            limits = TINY_LIMITS if self.dry_run else (MAX_NUM_SEQS, MAX_NUM_BATCHED_TOKENS, MAX_MODEL_LEN)
            num_seqs, num_tokens, length = limits
            try:
                self._engine = self._stack.enter_context(self.bench.start_engine(length, num_seqs, num_tokens))
            except Exception as error:
                self._problem = describe(error)
                raise
            if self._engine.fallback is not None:
                raise RuntimeError(self._engine.fallback)
        return self._engine

    def _prompts(self) -> list[list[int]]:
        chance = random.Random(5)
        lengths = (1, 9, 14) if self.dry_run else (1, 16, 17, 500, 9, 2048)
        vocab_size = self._started.runner.limits.vocab_size
        return [[chance.randrange(3, vocab_size) for _ in range(length)] for length in lengths]
