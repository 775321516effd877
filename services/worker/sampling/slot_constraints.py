"""Token masks of a step. A sequence's mask combines its grammar, bad words, allowed tokens, minimum length and
thinking limit.

The state of each slot lies on the host and advances with the slot's sampled tokens, in the order of steps. Admitting a
sequence rebuilds its state from its tokens, so preemption and failover need no extra data.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from services.worker.plan import GeneratingSequence, SequenceError, TokenConstraints
from services.worker.sampling.grammars import Grammars
from services.worker.sampling.stage import I64
from services.worker.sampling.thinking_budget import ThinkingBudget
from services.worker.sampling.token_mask import TokenMask
from services.worker.transfers import upload
from shared.grammar import GrammarError, check_matcher

if TYPE_CHECKING:
    from llguidance import LLMatcher

NO_GRAMMARS = "This worker has no tokenizer to apply a grammar with."
NOTHING_LEFT = "No token is left to draw: the constraints of this request contradict each other."

# A sequence with a longer output gets no grammar of its own: the output must be read again, which takes up to 30 µs per
# token. 17,000 characters of text have some 8,000 tokens with a vocabulary of 1,001.
_MAX_OUTPUT_TO_READ = 8192
# Number of tokens that a sequence must get from a grammar of its own before it can get another.
_LEAST_PROGRESS = 256

_UNLIMITED = np.iinfo(np.int64).max

Bits = NDArray[np.uint32]  # token t is bit t % 32 of word t // 32


@dataclass(slots=True)
class _Sequence:
    """A slot whose sequence is constrained."""

    wire_id: int
    constraints: TokenConstraints
    output: list[int]
    matcher: LLMatcher | None
    # The compilation that other sequences share. None: there is no grammar, or the sequence has one for itself.
    shared: Future[LLMatcher] | None
    # Length of the output when the sequence started.
    num_tokens_at_start: int
    thinking: ThinkingBudget | None
    # [num_words], mask of the tokens that allowed_token_ids and bad words of a single token permit at every position.
    # None: all tokens.
    always: Bits | None
    # Bad words of several tokens: maps a word's last token to the tokens before it.
    runs: dict[int, list[tuple[int, ...]]] = field(default_factory=dict)
    # Why no token can be sampled any more; None as long as tokens can be sampled. Once set, it is never cleared.
    failure: SequenceError | None = None

    @property
    def may_have_own_grammar(self) -> bool:
        """Whether the sequence could go on with a new lexer of its own, after the matcher has failed."""
        num_tokens = len(self.output)
        if self.shared is None and num_tokens - self.num_tokens_at_start < _LEAST_PROGRESS:
            return False
        return num_tokens <= _MAX_OUTPUT_TO_READ


class SlotConstraints:
    """Keeps the constraints of the sequences in slots, and computes their token masks. Not thread-safe: only the step
    thread calls it."""

    def __init__(self, max_num_seqs: int, vocab_size: int, grammars: Grammars | None) -> None:
        """`grammars`: None if the model has no tokenizer. Then `admit` refuses sequences with a grammar."""
        # Slots whose tokens must be observed.
        self.watched = np.zeros(max_num_seqs, bool)
        # Slots that need a mask in every step.
        self._always_masked = np.zeros(max_num_seqs, bool)
        # Number of tokens after the last observed token that can surely be sampled without a mask.
        self._num_free = np.full(max_num_seqs, _UNLIMITED, np.int64)
        # Number of tokens that launched steps sample for the slot, and that were not observed yet.
        self._num_unobserved = np.zeros(max_num_seqs, np.int64)
        self._vocab_size = vocab_size
        self._num_words = -(-vocab_size // 32)
        self._grammars = grammars
        self._slots: dict[int, _Sequence] = {}

    def admit(self, sequence: GeneratingSequence) -> str | None:
        """Assigns the slot to the sequence and returns None. If the sequence cannot run, returns the reason: a sentence
        for the client."""
        self.release(sequence.slot)
        constraints = sequence.constraints
        if constraints is None:
            return None
        problem = constraints.check(self._vocab_size)
        if problem is not None:
            return problem
        output = sequence.output_token_ids.tolist()
        matcher, shared = None, None
        if constraints.grammar:
            if self._grammars is None:
                return NO_GRAMMARS
            matcher = self._grammars.take_own(sequence.own_grammar_key) if sequence.own_grammar_key else None
            if matcher is None:
                shared = self._grammars.prepare(constraints.grammar)
                try:
                    matcher = shared.result().deep_copy()
                except GrammarError as error:
                    return _failed(error)
                matcher.consume_tokens(output)  # if this fails, so will the first mask
        thinking = None if constraints.thinking is None else ThinkingBudget(constraints.thinking)
        if thinking is not None:
            for token_id in output:
                thinking.observe(token_id)
        runs: dict[int, list[tuple[int, ...]]] = {}
        for word in constraints.bad_words:
            if len(word) > 1:
                runs.setdefault(word[-1], []).append(word[:-1])
        always = self._always(constraints)
        self._slots[sequence.slot] = _Sequence(
            sequence.wire_id, constraints, output, matcher, shared, len(output), thinking, always, runs
        )
        self.watched[sequence.slot] = True
        self._always_masked[sequence.slot] = not constraints.limits_thinking_alone
        self._relax(sequence.slot)
        return None

    def release(self, slot: int) -> None:
        self._slots.pop(slot, None)
        self.watched[slot] = self._always_masked[slot] = False
        self._num_free[slot] = _UNLIMITED
        self._num_unobserved[slot] = 0

    def failure(self, slot: int, wire_id: int) -> SequenceError | None:
        """Returns why no token can be sampled any more for the sequence `wire_id` in `slot`; None if tokens can be
        sampled, or if the slot no longer belongs to the sequence."""
        sequence = self._slots.get(slot)
        return None if sequence is None or sequence.wire_id != wire_id else sequence.failure

    def draw(self, slots: I64) -> None:
        """Records that a step was launched that samples one token for each of `slots`. Once the tokens are known, the
        caller must pass them to `observe`."""
        self._num_unobserved[slots] += 1

    def need_tokens(self, slots: I64) -> bool:
        """Returns whether the next token of any of these slots might need a mask. If this method returns True, the
        caller must pass all earlier tokens to `observe` before it calls `mask`."""
        return bool(self._may_be_masked(slots).any())

    def _may_be_masked(self, slots: I64) -> NDArray[np.bool_]:
        return self._always_masked[slots] | (self._num_unobserved[slots] >= self._num_free[slots])

    def observe(self, slot: int, wire_id: int, token_id: int) -> None:
        """Advances the slot's state by a sampled token. Ignores the token of a sequence that was released."""
        sequence = self._slots.get(slot)
        if sequence is None or sequence.wire_id != wire_id:
            return
        self._num_unobserved[slot] -= 1
        sequence.output.append(token_id)
        # Steps that were launched before the host knew that the output had ended still yield tokens. These tokens are
        # discarded later, so the matcher does not see them.
        if sequence.matcher is not None and not sequence.matcher.is_stopped():
            sequence.matcher.consume_token(token_id)
        if sequence.thinking is not None:
            sequence.thinking.observe(token_id)
            self._relax(slot)

    def _relax(self, slot: int) -> None:
        """If a thinking limit is the sequence's only constraint, updates how many tokens the sequence can sample before
        earlier tokens are observed: as many as the limit leaves, and any number once the reasoning has ended."""
        sequence = self._slots[slot]
        if sequence.thinking is None or self._always_masked[slot]:
            return
        num_free = sequence.thinking.num_free_tokens
        self._num_free[slot] = _UNLIMITED if num_free is None else num_free
        self.watched[slot] = num_free is not None

    def mask(self, slots: I64, device: torch.device) -> TokenMask | None:
        """Returns the mask of the rows whose next token is constrained; None if there are none. If the constraints
        allow no token for a row, all its bits are 0 and `failure` returns the reason. Call it after all earlier tokens
        were observed. Changes no state except failures."""
        rows = np.flatnonzero(self._may_be_masked(slots))
        if not len(rows):
            return None
        bits = np.zeros((len(rows), self._num_words), np.uint32)
        for row, slot in enumerate(slots[rows].tolist()):
            sequence = self._slots[slot]
            sequence.failure = sequence.failure or self._fill(sequence, bits[row])
        packed = bits.view(np.int32)
        return TokenMask(rows, torch.from_numpy(packed) if device.type == "cpu" else upload(packed, device))

    def _fill(self, sequence: _Sequence, bits: Bits) -> SequenceError | None:
        """Writes the sequence's allowed tokens into `bits`. Returns an error if no token is allowed."""
        matcher, constraints = sequence.matcher, sequence.constraints
        if matcher is None:
            bits.fill(0xFFFFFFFF)
        else:
            matcher.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)
            try:
                check_matcher(matcher)
            except GrammarError as error:
                bits.fill(0)
                assert self._grammars is not None
                if sequence.shared is not None:
                    self._grammars.renew(constraints.grammar, sequence.shared)
                return SequenceError(
                    sequence.wire_id,
                    _failed(error),
                    is_request_at_fault=True,
                    needs_own_grammar=sequence.may_have_own_grammar,
                )
        forced = None if sequence.thinking is None else sequence.thinking.forced
        # The token that ends the reasoning overrides every constraint except the grammar, because the other constraints
        # are meant for the answer after the reasoning.
        if forced is not None and bits[forced // 32] >> np.uint32(forced % 32) & 1:
            bits.fill(0)
            bits[forced // 32] = np.uint32(1 << forced % 32)
            return None
        if sequence.always is not None:
            bits &= sequence.always
        for last, beginnings in sequence.runs.items():
            if any(tuple(sequence.output[-len(beginning) :]) == beginning for beginning in beginnings):
                bits[last // 32] &= np.uint32(~(1 << last % 32) & 0xFFFFFFFF)
        if len(sequence.output) < constraints.min_tokens:
            longer = bits & ~_bits(constraints.end_token_ids, self._num_words)
            # If the grammar allows only an end token, the output is complete and min_tokens cannot extend it.
            if matcher is None or longer.any():
                bits[:] = longer
        self._clear_tail(bits)
        return None if bits.any() else SequenceError(sequence.wire_id, NOTHING_LEFT, is_request_at_fault=True)

    def _always(self, constraints: TokenConstraints) -> Bits | None:
        single = [word[0] for word in constraints.bad_words if len(word) == 1]
        if not constraints.allowed_token_ids and not single:
            return None
        allowed = _bits(constraints.allowed_token_ids, self._num_words)
        if not constraints.allowed_token_ids:
            allowed.fill(0xFFFFFFFF)
        return allowed & ~_bits(single, self._num_words)

    def _clear_tail(self, bits: Bits) -> None:
        """Clears the bits after the last token of the vocabulary."""
        if self._vocab_size % 32:
            bits[-1] &= np.uint32((1 << self._vocab_size % 32) - 1)


def _failed(error: GrammarError) -> str:
    return f"The grammar of this request failed: {error}."


def _bits(token_ids: tuple[int, ...] | list[int], num_words: int) -> Bits:
    """Returns a bit mask in which these tokens are set."""
    bits = np.zeros(num_words, np.uint32)
    ids = np.asarray(token_ids, np.int64)
    np.bitwise_or.at(bits, ids // 32, np.left_shift(np.uint32(1), (ids % 32).astype(np.uint32)))
    return bits
