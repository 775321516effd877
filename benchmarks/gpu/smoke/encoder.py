"""Starts an encoder of BERT's shape with dummy weights as a worker does, and embeds prompts of many lengths in one
step."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.gpu.asking import Ask, Asker
from benchmarks.gpu.cases import Case, Setting
from benchmarks.gpu.figures import Figure
from benchmarks.shapes import write_model
from services.worker.config import WorkerConfig
from services.worker.pooling.params import PoolingParams
from services.worker.startup.load import LoadedWorker, load_worker
from shared.config import resolve

BERT_BASE = {
    "architectures": ["BertModel"], "model_type": "bert", "vocab_size": 30_522, "hidden_size": 768,
    "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12, "max_position_embeddings": 512,
}  # fmt: skip
TINY = BERT_BASE | {
    "vocab_size": 1008, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
    "max_position_embeddings": 48,
}  # fmt: skip
# Maximum distance between two embeddings of a text, computed alone and in a batch: a few roundings of bfloat16.
MOST_DIFFERENCE = 5e-2


def cases(setting: Setting) -> Mapping[str, Callable[[], Iterable[Case]]]:
    dtypes = ("float32",) if setting.dry_run else ("bfloat16", "float16")
    return {f"engine encoder {dtype}": partial(_of_engine, setting, dtype) for dtype in dtypes}


def _of_engine(setting: Setting, dtype: str) -> Iterator[Case]:
    tried = TriedEncoder(setting.dry_run, dtype)
    yield Case("starts", tried.start)
    yield Case("embeddings are the same alone and in a batch", tried.embeddings)


class TriedEncoder:
    """An engine that starts with the first case that needs it and lives until its process ends."""

    def __init__(self, dry_run: bool, dtype: str) -> None:
        self._dry_run, self._dtype = dry_run, dtype

    def start(self) -> Iterator[Figure]:
        if self._engine.fallback is not None:
            raise RuntimeError(self._engine.fallback)
        yield Figure(f"encoder {self._dtype}: slots", float(self._engine.runner.limits.num_blocks), "sequences")

    def embeddings(self) -> float:
        together = self._embed(self._prompts())
        alone = [self._embed([prompt])[0] for prompt in self._prompts()]
        worst = max(float(np.linalg.norm(a - b)) for a, b in zip(together, alone, strict=True))
        if not worst <= MOST_DIFFERENCE:
            raise AssertionError(f"an embedding differs by {worst:.2e} in a batch; the limit is {MOST_DIFFERENCE:g}")
        return worst

    def _embed(self, prompts: list[list[int]]) -> list[NDArray[np.float32]]:
        """Embeds the prompts, and checks that the vectors have length 1."""
        asks = [Ask(prompt, 0, pooling=PoolingParams(normalize=True)) for prompt in prompts]
        Asker(self._engine.runner).run(asks)
        found = [ask.embedding for ask in asks if ask.embedding is not None]
        if len(found) < len(asks) or any(abs(float(np.linalg.norm(vector)) - 1) > 1e-3 for vector in found):
            raise AssertionError("an embedding's length is not 1")
        return found

    def _prompts(self) -> list[list[int]]:
        chance = random.Random(5)
        lengths = (1, 9, 14) if self._dry_run else (1, 16, 17, 500, 9, 512)
        return [[chance.randrange(3, 1000) for _ in range(length)] for length in lengths]

    @cached_property
    def _engine(self) -> LoadedWorker:
        num_seqs, num_tokens = (4, 48) if self._dry_run else (128, 8192)
        with tempfile.TemporaryDirectory(prefix="quire-bench-") as folder:
            arguments = write_model(Path(folder), TINY if self._dry_run else BERT_BASE)
            arguments += ["--device", "cuda", "--dtype", self._dtype, "--swap-space", "0", "--num-threads", "1"]
            arguments += ["--max-num-seqs", str(num_seqs), "--max-num-batched-tokens", str(num_tokens)]
            config = resolve(WorkerConfig, arguments, prog="benchmarks.gpu", description="The worker's options.")
            return load_worker(config, lambda _detail, _progress: None)
