"""Builds Frame messages that carry prompt log probabilities, for the sequences of one router."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from quire.inference.v1 import sampling_pb2
from quire.scheduler.v1 import scheduler_pb2
from services.scheduler.converters import PromptLogprobColumns
from services.scheduler.core import U32

# Maximum size of the log probabilities in one frame, in bytes. It keeps a message under a megabyte. The log
# probabilities that one step computes for one sequence are always smaller than this limit.
_MAX_BYTES = 512 * 1024


class PromptFrames:
    """Collects log probabilities of prompts until the task that writes to the router takes them. Each prompt token's
    log probabilities are collected only once, so memory is bounded even if the router reads slowly.
    """

    __slots__ = ("_pending",)

    def __init__(self) -> None:
        # (sequence id, attempt, log probabilities), in the order of their arrival.
        self._pending: list[tuple[int, int, PromptLogprobColumns]] = []

    def add(self, sequence_id: int, attempt: int, entries: PromptLogprobColumns) -> None:
        self._pending.append((sequence_id, attempt, entries))

    def take(self) -> Iterator[scheduler_pb2.Frame]:
        """Removes all collected log probabilities and yields them, in frames of at most _MAX_BYTES."""
        pending, self._pending = self._pending, []
        part: list[tuple[int, int, PromptLogprobColumns]] = []
        num_bytes = 0
        for entry in pending:
            num_bytes += entry[2].num_bytes
            if part and num_bytes > _MAX_BYTES:
                yield _frame(part)
                part, num_bytes = [], entry[2].num_bytes
            part.append(entry)
        if part:
            yield _frame(part)


def _frame(part: list[tuple[int, int, PromptLogprobColumns]]) -> scheduler_pb2.Frame:
    offsets = array(U32, [0])
    for _, _, entries in part:
        offsets.append(offsets[-1] + entries.num_tokens)
    columns = [entries for _, _, entries in part]
    return scheduler_pb2.Frame(
        prompt_logprobs_attempts=array(U32, (attempt for _, attempt, _ in part)).tobytes(),
        prompt_logprobs=sampling_pb2.PromptLogprobs(
            sequence_ids=array(U32, (sequence_id for sequence_id, _, _ in part)).tobytes(),
            first_positions=array(U32, (entries.first_position for _, _, entries in part)).tobytes(),
            offsets=offsets.tobytes(),
            logprobs=b"".join(entries.logprobs for entries in columns),
            ranks=b"".join(entries.ranks for entries in columns),
            top_counts=array(U32, (entries.top_count for entries in columns)).tobytes(),
            top_token_ids=b"".join(entries.top_token_ids for entries in columns),
            top_logprobs=b"".join(entries.top_logprobs for entries in columns),
        ),
    )
