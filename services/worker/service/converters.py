"""Converts protobuf messages to the worker's dataclasses and back."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from quire.inference.v1 import constraints_pb2, model_pb2, pooling_pb2, sampling_pb2
from quire.worker.v1 import worker_pb2
from services.worker.checkpoint import ModelFacts
from services.worker.errors import PlanError
from services.worker.models import GenerationDefaults
from services.worker.plan import (
    U32,
    GeneratingSequence,
    Logprobs,
    NewSequence,
    PoolingSequence,
    PromptLogprobs,
    Rows,
    SamplingParams,
    StepPlan,
    StepResult,
    ThinkingLimit,
    TokenConstraints,
)
from services.worker.pooling import ClassificationParams, PoolingKind, PoolingParams, VectorParams

_POOLING_TYPES = {
    PoolingKind.LAST: pooling_pb2.POOLING_TYPE_LAST,
    PoolingKind.MEAN: pooling_pb2.POOLING_TYPE_MEAN,
    PoolingKind.CLS: pooling_pb2.POOLING_TYPE_CLS,
}


def u32(data: bytes) -> U32:
    """Reads a column of little-endian u32. Raises PlanError if the length is no multiple of 4 bytes."""
    if len(data) % 4:
        raise PlanError(f"a column of {len(data)} bytes holds no whole number of u32")
    return np.frombuffer(data, "<u4")


def plan_from_proto(message: worker_pb2.StepPlan) -> StepPlan:
    """Converts a plan. Raises PlanError if a column is malformed. `BatchState` checks later whether the plan fits the
    worker's state."""
    rows = message.rows
    return StepPlan(
        epoch=message.epoch,
        step_id=message.step_id,
        released_wire_ids=u32(message.released_wire_ids),
        new_sequences=tuple(_new_sequence(sequence) for sequence in message.new_sequences),
        rows=Rows(
            wire_ids=u32(rows.wire_ids),
            slots=u32(rows.slots),
            num_scheduled_tokens=u32(rows.num_scheduled_tokens),
            num_computed_tokens=u32(rows.num_computed_tokens),
            new_block_offsets=u32(rows.new_block_offsets) if rows.new_block_offsets else np.zeros(1, np.uint32),
            new_block_ids=u32(rows.new_block_ids),
        ),
        copy_sources=u32(message.copy_sources),
        copy_destinations=u32(message.copy_destinations),
        swap_out_blocks=u32(message.swap_out_blocks),
        swap_out_slots=u32(message.swap_out_slots),
        swap_in_slots=u32(message.swap_in_slots),
        swap_in_blocks=u32(message.swap_in_blocks),
    )


def _new_sequence(message: worker_pb2.NewSequence) -> NewSequence:
    """Converts a new sequence. Raises PlanError if it asks both for pooling and for log probabilities."""
    common = (
        message.wire_id,
        message.slot,
        u32(message.token_ids),
        message.num_prompt_tokens,
        message.num_computed_tokens,
        u32(message.block_ids),
    )
    if message.HasField("pooling") or message.HasField("classification"):
        if message.HasField("prompt_logprobs_from"):
            raise PlanError(f"new sequence {message.wire_id} asks for pooling, but also for log probabilities")
        params: VectorParams = _pooling(message.pooling)
        if message.HasField("classification"):
            params = _classification(message.classification)
        return PoolingSequence(*common, params, traceparent=message.traceparent, request_id=message.request_id)
    return GeneratingSequence(
        *common,
        sampling=_sampling(message.sampling),
        choice_index=message.choice_index,
        constraints=_constraints(message.constraints) if message.HasField("constraints") else None,
        prompt_logprobs_from=message.prompt_logprobs_from if message.HasField("prompt_logprobs_from") else None,
        own_grammar_key=message.own_grammar_key,
        traceparent=message.traceparent,
        request_id=message.request_id,
    )


def _constraints(message: constraints_pb2.TokenConstraints) -> TokenConstraints:
    words, offsets = u32(message.bad_word_token_ids), u32(message.bad_word_offsets).astype(np.int64)
    if len(offsets) and (offsets[0] != 0 or offsets[-1] != len(words) or (np.diff(offsets) < 0).any()):
        raise PlanError("bad_word_offsets do not partition bad_word_token_ids")
    return TokenConstraints(
        grammar=message.grammar,
        min_tokens=message.min_tokens,
        end_token_ids=tuple(u32(message.end_token_ids).tolist()),
        allowed_token_ids=tuple(u32(message.allowed_token_ids).tolist()),
        bad_words=tuple(tuple(words[start:end].tolist()) for start, end in pairwise(offsets.tolist())),
        thinking=_thinking(message) if message.HasField("thinking_budget") else None,
    )


def _thinking(message: constraints_pb2.TokenConstraints) -> ThinkingLimit:
    begin = message.thinking_begin_token_id if message.HasField("thinking_begin_token_id") else None
    return ThinkingLimit(message.thinking_budget, message.thinking_end_token_id, begin)


def _pooling(message: pooling_pb2.PoolingParams) -> PoolingParams:
    return PoolingParams(
        message.dimensions if message.HasField("dimensions") else None,
        message.normalize if message.HasField("normalize") else None,
    )


def _classification(message: pooling_pb2.ClassificationParams) -> ClassificationParams:
    return ClassificationParams(
        message.second_text_at if message.HasField("second_text_at") else None,
        message.activates if message.HasField("activates") else True,
    )


def _sampling(message: sampling_pb2.SamplingParams) -> SamplingParams:
    """Converts sampling parameters. Fields that are not set get the defaults that `sampling.proto` documents."""
    given = {
        name: getattr(message, name)
        for name in SamplingParams.__dataclass_fields__
        if name not in ("logit_bias", "logprob_token_ids") and message.HasField(name)  # type: ignore[arg-type]
    }
    return SamplingParams(
        **given,
        logit_bias=tuple((bias.token_id, bias.bias) for bias in message.logit_bias),
        logprob_token_ids=tuple(message.logprob_token_ids),
    )


def result_to_proto(result: StepResult) -> worker_pb2.StepResult:
    return worker_pb2.StepResult(
        step_id=result.step_id,
        wire_ids=result.wire_ids.astype("<u4").tobytes(),
        token_ids=result.token_ids.astype("<u4").tobytes(),
        logprobs=None if result.logprobs is None else _logprobs_to_proto(result.logprobs),
        prompt_logprobs=None if result.prompt_logprobs is None else _prompt_logprobs_to_proto(result.prompt_logprobs),
        errors=[
            worker_pb2.SequenceError(
                wire_id=error.wire_id,
                message=error.message,
                is_request_at_fault=error.is_request_at_fault,
                needs_own_grammar=error.needs_own_grammar,
            )
            for error in result.errors
        ],
        timings=worker_pb2.StepTimings(queue_us=result.queue_us, run_us=result.run_us),
        pooled=[
            worker_pb2.PooledSequence(wire_id=pooled.wire_id, embedding=pooled.embedding.astype("<f4").tobytes())
            for pooled in result.pooled
        ],
    )


def _logprobs_to_proto(logprobs: Logprobs) -> sampling_pb2.TokenLogprobs:
    return sampling_pb2.TokenLogprobs(
        token_indices=logprobs.token_indices.astype("<u4").tobytes(),
        logprobs=logprobs.logprobs.astype("<f4").tobytes(),
        top_counts=logprobs.top_counts.astype("<u4").tobytes(),
        top_token_ids=logprobs.top_token_ids.astype("<u4").tobytes(),
        top_logprobs=logprobs.top_logprobs.astype("<f4").tobytes(),
    )


def _prompt_logprobs_to_proto(logprobs: PromptLogprobs) -> sampling_pb2.PromptLogprobs:
    return sampling_pb2.PromptLogprobs(
        sequence_ids=logprobs.wire_ids.astype("<u4").tobytes(),
        first_positions=logprobs.first_positions.astype("<u4").tobytes(),
        offsets=logprobs.offsets.astype("<u4").tobytes(),
        logprobs=logprobs.logprobs.astype("<f4").tobytes(),
        ranks=logprobs.ranks.astype("<u4").tobytes(),
        top_counts=logprobs.top_counts.astype("<u4").tobytes(),
        top_token_ids=logprobs.top_token_ids.astype("<u4").tobytes(),
        top_logprobs=logprobs.top_logprobs.astype("<f4").tobytes(),
    )


def model_info_to_proto(model: ModelFacts) -> model_pb2.ModelInfo:
    classifier = model.config.classifier
    return model_pb2.ModelInfo(
        name=model.names[0],
        aliases=model.names[1:],
        max_model_len=model.max_model_len,
        vocab_size=model.config.vocab_size,
        eos_token_ids=model.config.eos_token_ids,
        default_sampling=_defaults_to_proto(model.config.default_sampling),
        tokenizer_sha256=model.tokenizer.sha256,
        tokenizer_bytes=len(model.tokenizer.data),
        architecture=model.config.architecture,
        dtype=model.dtype,
        embedding=_embedding_info(model) if classifier is None else None,
        embedding_prompts=_embedding_prompts(model) if classifier is None else None,
        is_encoder=model.config.is_encoder,
        classifier=None if classifier is None else pooling_pb2.ClassifierInfo(labels=classifier.labels),
        has_no_output_layer=not (model.config.is_encoder or model.config.generates),
        version=model.version,
    )


def _embedding_info(model: ModelFacts) -> pooling_pb2.EmbeddingInfo:
    pooling = model.pooling
    return pooling_pb2.EmbeddingInfo(
        size=model.config.hidden_size,
        pooling=_POOLING_TYPES[pooling.kind],
        normalize=pooling.normalize,
        is_matryoshka=pooling.is_matryoshka,
        matryoshka_dimensions=pooling.matryoshka_dimensions,
    )


def _embedding_prompts(model: ModelFacts) -> pooling_pb2.EmbeddingPrompts:
    prompts = model.prompts
    return pooling_pb2.EmbeddingPrompts(
        prompts=[pooling_pb2.EmbeddingPrompt(name=name, text=text) for name, text in prompts.texts],
        default_name=prompts.default_name,
    )


def _defaults_to_proto(defaults: GenerationDefaults) -> sampling_pb2.SamplingParams:
    return sampling_pb2.SamplingParams(
        temperature=defaults.temperature,
        top_k=defaults.top_k,
        top_p=defaults.top_p,
        min_p=defaults.min_p,
        repetition_penalty=defaults.repetition_penalty,
    )
