"""Builds the runner of a decoder or an encoder."""

from __future__ import annotations

from collections.abc import Sequence

from services.worker.models import Decoder, Encoder
from services.worker.ops import KVPages, Ops
from services.worker.pages import NoPageCopies, PageCopies
from services.worker.plan import Limits
from services.worker.pooling import PoolingConfig, PoolingKind
from services.worker.sampling import Grammars
from services.worker.step import (
    DecoderGeneration,
    Device,
    EmbeddingOutput,
    EncoderForwardPass,
    ModelRunner,
    NoGeneration,
    PooledOutput,
    Pooler,
    ScoreOutput,
)

LAST_TOKEN = PoolingConfig(PoolingKind.LAST)


def create_decoder_runner(
    decoder: Decoder,
    device: Device,
    pages: Sequence[KVPages],
    limits: Limits,
    copies: PageCopies | None = None,
    grammars: Grammars | None = None,
    pooling: PoolingConfig = LAST_TOKEN,
) -> ModelRunner:
    """Builds a decoder's runner. `copies`: the object that copies blocks of `pages` to the host and back; None: the
    function creates one. `grammars`: the object that compiles grammars for the model's tokenizer; None: sequences with
    a grammar fail."""
    ops, clock = device.ops, device.create_clock()
    forward = device.create_forward_pass(decoder, ops, pages, limits, clock)
    sampler = device.create_sampler(ops, limits.max_num_seqs, limits.vocab_size)
    generation = DecoderGeneration(decoder, sampler, limits, ops.device, grammars)
    pooler = _pooler(decoder, ops, limits, pooling)
    copies = copies or device.create_page_copies(pages, limits.num_host_blocks)
    return ModelRunner(device, limits, clock, forward, generation, pooler, copies)


def create_encoder_runner(encoder: Encoder, device: Device, limits: Limits, pooling: PoolingConfig) -> ModelRunner:
    """Builds an encoder's runner. It has no pages, because an encoder keeps no state between steps."""
    ops, clock = device.ops, device.create_clock()
    forward = EncoderForwardPass(encoder, ops.device, clock)
    pooler = _pooler(encoder, ops, limits, pooling)
    return ModelRunner(device, limits, clock, forward, NoGeneration(ops.device), pooler, NoPageCopies())


def _pooler(model: Decoder | Encoder, ops: Ops, limits: Limits, pooling: PoolingConfig) -> Pooler:
    config = model.config
    output: PooledOutput = EmbeddingOutput(pooling, config.hidden_size)
    if config.classifier is not None:
        output = ScoreOutput(model.scores, len(config.classifier.labels), config.classifier.activation, ops)
    return Pooler(pooling, ops, limits.max_num_seqs, config.hidden_size, output)
