"""Adds the output and the ends of sequences to the next frames of their routers."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from quire.scheduler.v1 import scheduler_pb2
from services.scheduler.converters import TokenLogprob, WorkerResult
from services.scheduler.core import FinishedSequence, Sequence, StepOutcome
from services.scheduler.sessions import RoutedRequest, SequenceSpans

logger = logging.getLogger(__name__)


def report(ends: Iterable[FinishedSequence[RoutedRequest]], spans: SequenceSpans) -> None:
    """Adds the ends of sequences."""
    for end in ends:
        key = end.sequence.request.key
        if end.failure is not None:
            logger.warning("a sequence failed: %s", end.failure.message, extra={"request_id": key.request_id})
        if end.embedding is not None:
            _add_started(end.sequence)  # it has no first token
        key.session.add_finished(key, end.reason, end.failure, end.embedding)
        spans.end(key, end.reason.name.lower())


def report_interruptions(
    sequences: Iterable[Sequence[RoutedRequest]],
    reason: scheduler_pb2.InterruptionReason.ValueType,
    spans: SequenceSpans,
) -> None:
    """Adds that running sequences have to wait, or to start again."""
    name = scheduler_pb2.InterruptionReason.Name(reason).removeprefix("INTERRUPTION_REASON_").lower()
    for sequence in sequences:
        key = sequence.request.key
        key.session.add_interruption(key, reason)
        spans.event(key, name)


def deliver(
    outcome: StepOutcome[RoutedRequest],
    result: WorkerResult,
    logprobs: dict[int, TokenLogprob],
    spans: SequenceSpans,
) -> None:
    """Adds the outcome of a step. `result`: what the worker returned; `logprobs`: by index in the result."""
    for sequence, index in outcome.prompt_logprobs:
        key = sequence.request.key
        key.session.add_prompt_logprobs(key, result.prompt_logprobs[index])
    for sequence, output_index, token_id, result_index in outcome.tokens:
        key = sequence.request.key
        key.session.add_token(key, output_index, token_id, logprobs.get(result_index))
        if output_index == len(sequence.request.output_token_ids):
            _add_started(sequence)
        if output_index == 0:
            spans.event(key, "first_token")
    report_interruptions(outcome.outgrown, scheduler_pb2.INTERRUPTION_REASON_GRAMMAR_FULL, spans)
    report(outcome.finished, spans)


def _add_started(sequence: Sequence[RoutedRequest]) -> None:
    key = sequence.request.key
    key.session.add_started(key, sequence.num_cached_tokens or 0, sequence.num_host_cached_tokens)
