"""Small random encoders, made and judged by transformers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor

from services.worker.config import WorkerConfig
from services.worker.models.encoder_config import read_encoder_config
from services.worker.ops.interface import Ops
from services.worker.pages.host_memory import SwapSpace
from services.worker.plan.step_plan import F32, PoolingSequence, Rows, StepPlan, StepResult
from services.worker.pooling.config import read_pooling
from services.worker.pooling.params import PoolingParams, VectorParams
from services.worker.sampling.grammars import Grammars
from services.worker.startup.create_ops import create_ops
from services.worker.startup.device import compose_device
from services.worker.startup.encoder import EncoderStart
from services.worker.startup.model_start import Setting
from services.worker.step.model_runner import ModelRunner
from tests.unit.worker.driver import column

VOCAB_SIZE = 199
TINY: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 130,
    "pad_token_id": 1,
}


def save_encoder(directory: Path, architecture: str = "BertModel", **overrides: Any) -> transformers.PreTrainedModel:
    """Of transformers' class of that name; norms and biases are random too."""
    model_class = getattr(transformers, architecture)
    config = model_class.config_class(**(TINY | overrides))
    config._attn_implementation = "eager"
    model = model_class(config).eval()
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            scale = 1.5 / parameter.shape[1] ** 0.5 if parameter.dim() == 2 else 0.3
            parameter.copy_(noise * scale + ("LayerNorm.weight" in name))
    model.save_pretrained(directory)
    return model


def write_modules(directory: Path, pooling: dict[str, Any], *further: str) -> None:
    """sentence-transformers' files: a transformer, this pooling, and steps of other types."""
    types = ["Transformer", "Pooling", *further]
    modules = [
        {"idx": index, "name": str(index), "path": f"{index}_{name}" if index else "", "type": f"a.b.models.{name}"}
        for index, name in enumerate(types)
    ]
    (directory / "modules.json").write_text(json.dumps(modules))
    (directory / "1_Pooling").mkdir()
    (directory / "1_Pooling" / "config.json").write_text(json.dumps(pooling))


def make_encoder_runner(directory: Path, ops: Ops | None = None, **options: Any) -> ModelRunner:
    config = WorkerConfig(**({"max_num_seqs": 8, "max_num_batched_tokens": 256} | options))
    model = read_encoder_config(directory)
    assert model is not None
    ops = ops or create_ops(torch.device("cpu"), torch.float32)
    start = EncoderStart(model)
    pooling = read_pooling(directory, config.pooling_type, start.default_pooling)
    grammars = Grammars(b"", model.vocab_size, ())
    setting = Setting(config, directory, compose_device(ops), pooling, grammars, SwapSpace(0), lambda *_: None)
    return start.load(setting)[0]


def embed_together(
    runner: ModelRunner,
    prompts: Sequence[Sequence[int]],
    params: VectorParams | Sequence[VectorParams] | None = None,
) -> StepResult:
    """One step over all of them, in an epoch of its own. `params`: one for all, or one for each."""
    each = params if isinstance(params, Sequence) else [params or PoolingParams()] * len(prompts)
    size = runner.limits.block_size
    blocks = [-(-len(prompt) // size) for prompt in prompts]
    ends = np.cumsum([0, *blocks]).tolist()
    sequences = tuple(
        PoolingSequence(
            index + 1, index, column(list(prompt)), len(prompt), 0, column(list(range(*ends[index : index + 2]))),
            each[index],
        )
        for index, prompt in enumerate(prompts)
    )  # fmt: skip
    slots = list(range(len(prompts)))
    rows = Rows(
        column([slot + 1 for slot in slots]), column(slots), column([len(prompt) for prompt in prompts]),
        column([0 for _ in slots]), column([0 for _ in range(len(slots) + 1)]), column([]),
    )  # fmt: skip
    runner.reset()
    return runner.collect(runner.launch(StepPlan(1, 1, column([]), sequences, rows), 0.0))


def embeddings(result: StepResult) -> list[F32]:
    assert not result.errors
    return [pooled.embedding for pooled in result.pooled]


def hidden_states(model: transformers.PreTrainedModel, token_ids: Sequence[int]) -> Tensor:
    """[len(token_ids), hidden], of the body of whatever model."""
    with torch.no_grad():
        hidden: Tensor = model.base_model(torch.tensor([token_ids])).last_hidden_state[0]
    return hidden


def normalized(vector: Tensor) -> F32:
    return (vector / vector.norm()).numpy()  # type: ignore[no-any-return]
