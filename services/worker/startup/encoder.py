"""Starts an encoder: loads its weights and builds a runner without KV cache.

The scheduler plans in blocks. An encoder therefore reports one block per slot, large enough for the longest sequence,
so that slots always run out before blocks do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from services.worker.config import WorkerConfig
from services.worker.errors import ModelError
from services.worker.models import EncoderConfig, weight_bytes
from services.worker.pages import require_memory
from services.worker.plan import Limits
from services.worker.pooling import PoolingKind
from services.worker.progress import Phase, per_percent
from services.worker.quantization import COMPUTED
from services.worker.startup.device_memory import out_of_memory_explained
from services.worker.startup.model_start import Setting, check_classifier_pooling
from services.worker.startup.runners import create_encoder_runner
from services.worker.startup.speed import PoolingProbe, Probe
from services.worker.startup.step_size import resolve_step_tokens
from services.worker.step import ModelRunner
from services.worker.weights import load_encoder, open_weights


@dataclass(frozen=True, slots=True)
class EncoderStart:
    """See `ModelStart`."""

    model: EncoderConfig
    probe: ClassVar[Probe] = PoolingProbe()

    @property
    def default_pooling(self) -> PoolingKind:
        """See `ModelStart`."""
        return PoolingKind.CLS if self.model.classifier is None else self.model.network.pooling

    def check_pooling(self, kind: PoolingKind) -> None:
        """See `ModelStart`. Accepts every kind for embeddings, because each token of an encoder sees all others."""
        if self.model.classifier is not None:
            check_classifier_pooling(kind, self.default_pooling)

    def load(self, setting: Setting) -> tuple[ModelRunner, float]:
        """See `ModelStart`."""
        config, ops, directory, model = setting.config, setting.device.ops, setting.path, self.model
        if config.quantization is not None:
            raise ModelError(f"--quantization is {config.quantization}, but encoders run in floating point only")
        max_model_len = encoder_max_model_len(config, model)
        progress = per_percent(setting.report, Phase.LOAD)
        source = open_weights(directory, model, ops, config.load_format, None, progress)
        if ops.device.type == "cpu":
            num_bytes = weight_bytes(model, ops.dtype.itemsize, computed=COMPUTED[ops.device.type])
            # `quire serve` has compared the weights of several models with the memory.
            num_loads = config.workers_on_host if config.host_memory_bytes is None else 1
            require_memory(num_bytes, f"the weights of {directory}", num_loads)
        with torch.inference_mode(), out_of_memory_explained("the weights", ops.device):
            encoder = load_encoder(model, ops, source, max_model_len)
        limits = Limits(
            num_blocks=config.max_num_seqs,
            block_size=max_model_len,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=_step_tokens(config, model),
            max_model_len=max_model_len,
            vocab_size=model.vocab_size,
            has_kv_cache=False,
        )
        with torch.inference_mode():
            return create_encoder_runner(encoder, setting.device, limits, setting.pooling), 0.0

    def describe_capacity(self, limits: Limits) -> str:
        """See `ModelStart`."""
        return "an encoder, without KV cache"


def encoder_max_model_len(config: WorkerConfig, model: EncoderConfig) -> int:
    """Returns the maximum number of tokens of a sequence: the configured one, else the smaller of the model's limit and
    the maximum number of tokens of a step. Raises ModelError if the configured number exceeds either limit."""
    step_tokens = _step_tokens(config, model)
    if config.max_model_len is None:
        return min(config.longest(model.max_model_len), step_tokens)
    if config.max_model_len > model.max_model_len:
        raise ModelError(
            f"--max-model-len is {config.max_model_len}; the model takes at most {model.max_model_len} tokens"
        )
    if config.max_model_len > step_tokens:
        raise ModelError(
            f"--max-model-len is {config.max_model_len}, but an encoder computes a sequence in one step, and a step "
            f"has at most {step_tokens} tokens; raise --max-num-batched-tokens"
        )
    return config.max_model_len


def _step_tokens(config: WorkerConfig, model: EncoderConfig) -> int:
    return resolve_step_tokens(config, config.longest(model.max_model_len))
