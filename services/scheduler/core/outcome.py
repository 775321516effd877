"""Applies a step's result to the sequences, and collects what the core's caller must send to routers.

Each function below applies one part of a result, in the order in which `Scheduler.apply` calls them. Results of a
sequence that has ended or was preempted are dropped: its wire id is no longer known.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic

from services.scheduler.core.kv_memory import KVMemory, Moves
from services.scheduler.core.plan import StepResult
from services.scheduler.core.request import RequestT
from services.scheduler.core.roster import Roster
from services.scheduler.core.sequence import Failure, FinishReason, Sequence

# (sequence, index in its output, token id, index in the StepResult's columns). It is a plain tuple, because every
# sampled token creates one, and a named tuple takes seven times as long.
NewToken = tuple[Sequence[RequestT], int, int, int]


@dataclass(frozen=True, slots=True)
class FinishedSequence(Generic[RequestT]):
    sequence: Sequence[RequestT]
    reason: FinishReason
    failure: Failure | None = None
    embedding: bytes | None = None  # the vector, if the sequence was pooled


@dataclass(slots=True)
class StepOutcome(Generic[RequestT]):
    """What routers must be told about a step: log probabilities of prompts, new tokens, ended sequences, and sequences
    that must wait."""

    # (sequence, index in the StepResult's `prompt_logprobs`)
    prompt_logprobs: list[tuple[Sequence[RequestT], int]] = field(default_factory=list)
    tokens: list[NewToken[RequestT]] = field(default_factory=list)
    finished: list[FinishedSequence[RequestT]] = field(default_factory=list)
    # Sequences that wait until their preparation has been made again, for each alone.
    outgrown: list[Sequence[RequestT]] = field(default_factory=list)


def fail_sequences(
    result: StepResult, roster: Roster[RequestT], memory: KVMemory[RequestT], outcome: StepOutcome[RequestT]
) -> None:
    """Ends the sequences that failed in the worker, and removes from the cache the prefixes that they computed."""
    for wire_id, failure in result.errors:
        sequence = roster.by_wire_id.get(wire_id)
        if sequence is not None:
            memory.retract(sequence)
            roster.remove(sequence)
            outcome.finished.append(FinishedSequence(sequence, FinishReason.ERROR, failure))


def requeue_outgrown(result: StepResult, roster: Roster[RequestT], outcome: StepOutcome[RequestT]) -> None:
    """Moves the sequences back to the queue that need their preparation for themselves. A sequence fails if it got no
    token since it had one. Raises ValueError if a sequence needs no preparation."""
    for wire_id, failure in result.outgrown:
        sequence = roster.by_wire_id.get(wire_id)
        if sequence is None:
            continue
        if sequence.needs is None:
            raise ValueError(f"the result of step {result.step_id} wants a preparation for a sequence that needs none")
        if sequence.needs.is_single and not sequence.has_sampled:
            roster.remove(sequence)
            outcome.finished.append(FinishedSequence(sequence, FinishReason.ERROR, failure))
            continue
        sequence.has_outgrown = True
        roster.requeue(sequence)
        outcome.outgrown.append(sequence)


def publish_blocks(moves: Moves[RequestT], roster: Roster[RequestT], memory: KVMemory[RequestT]) -> None:
    """Publishes the blocks that the step filled, and wakes the sequences that waited for them. Call it before
    `append_tokens`, which ends sequences and gives their blocks back to the pool.
    """
    for sequence, wire_id, num_blocks in moves.filled:
        if sequence.wire_id == wire_id:
            for prefix in memory.publish(sequence, num_blocks):
                roster.wake(prefix)


def take_prompt_logprobs(result: StepResult, roster: Roster[RequestT], outcome: StepOutcome[RequestT]) -> None:
    """Adds the prompts' log probabilities to the outcome. Raises ValueError if a sequence's log probabilities do not
    begin right after those of earlier results, or go past the end of its prompt."""
    for index, entries in enumerate(result.prompt_logprobs):
        sequence = roster.by_wire_id.get(entries.wire_id)
        if sequence is None:
            continue
        num_known = sequence.num_prompt_logprobs + entries.num_tokens
        if entries.first_position != sequence.num_prompt_logprobs + 1 or num_known >= sequence.num_prompt_tokens:
            raise ValueError(
                f"log probabilities of {entries.num_tokens} prompt tokens from position {entries.first_position} on "
                "are out of order or go past the end of the prompt"
            )
        sequence.num_prompt_logprobs = num_known
        outcome.prompt_logprobs.append((sequence, index))


def append_tokens(result: StepResult, roster: Roster[RequestT], outcome: StepOutcome[RequestT]) -> None:
    """Appends the sampled tokens to their sequences, and ends the sequences that get their last token. The loop
    must be fast: it runs once per sampled token, like the loop of `StepBuilder.add_decodes`.

    Raises ValueError if the result has a token for a sequence that should get a vector.
    """
    by_wire_id, tokens = roster.by_wire_id, outcome.tokens
    for index, (wire_id, token_id) in enumerate(zip(result.wire_ids, result.token_ids, strict=True)):
        sequence = by_wire_id.get(wire_id)
        if sequence is None:
            continue
        token_ids = sequence.token_ids
        num_tokens = len(token_ids)
        is_last = num_tokens + 1 >= sequence.max_num_tokens
        if is_last and sequence.request.work.gives_vector:
            raise ValueError(f"the result of step {result.step_id} brings a token where a vector was expected")
        token_ids.append(token_id)
        tokens.append((sequence, num_tokens - sequence.num_prompt_tokens, token_id, index))
        if token_id in sequence.stop_token_ids:
            reason = FinishReason.STOP
        elif is_last:
            reason = FinishReason.LENGTH
        else:
            continue
        roster.remove(sequence)
        outcome.finished.append(FinishedSequence(sequence, reason))


def take_vectors(result: StepResult, roster: Roster[RequestT], outcome: StepOutcome[RequestT]) -> None:
    """Ends the sequences whose vectors the step pooled. Raises ValueError if the result has a vector for a sequence
    that should get a token.
    """
    for wire_id, embedding in result.pooled:
        sequence = roster.by_wire_id.get(wire_id)
        if sequence is None:
            continue
        if not sequence.request.work.gives_vector:
            raise ValueError(f"the result of step {result.step_id} brings a vector where a token was expected")
        roster.remove(sequence)
        outcome.finished.append(FinishedSequence(sequence, FinishReason.STOP, embedding=embedding))
