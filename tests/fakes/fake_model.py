"""A fake model for a worker. It checks that every plan obeys the contract in worker.proto.

The "forward pass" is a hash over the whole history of a sequence, read back from the pages, so that a wrong block
table, a block used twice, a stale page or a lost token changes the output. The scheduler's tests use this model as
their oracle. It also shows the author of a new engine what a worker must guarantee:

- a plan is applied in the order swap-out, release, swap-in, copies, new sequences, forward, sample;
- no block is written while another sequence reads it;
- every id, slot, position and block of a plan is checked, and a violation ends the epoch (ContractError);
- tokens that the scheduler does not know yet come from the worker's own state, so plans need not wait for results.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field

from quire.worker.v1 import worker_pb2

_MULTIPLIER = 6364136223846793005
_INCREMENT = 1442695040888963407
_MASK = (1 << 64) - 1

VOCAB_SIZE = 512
EOS_TOKEN_ID = 2


class ContractError(Exception):
    """A plan violates the contract of worker.proto."""


def extend_hash(prefix_hash: int, token_id: int) -> int:
    """Returns the "keys and values" of a token, which depend on all tokens before it."""
    return ((prefix_hash ^ (token_id + 1)) * _MULTIPLIER + _INCREMENT) & _MASK


def next_token(prefix_hash: int, choice_index: int = 0) -> int:
    return (extend_hash(prefix_hash, choice_index) >> 33) % VOCAB_SIZE


def expected_output(
    prompt: Iterable[int], max_tokens: int, stop_token_ids: Iterable[int] = (EOS_TOKEN_ID,), choice_index: int = 0
) -> list[int]:
    """Returns the output that every correct run of `prompt` generates."""
    prefix_hash = 0
    for token_id in prompt:
        prefix_hash = extend_hash(prefix_hash, token_id)
    output: list[int] = []
    stops = set(stop_token_ids)
    while len(output) < max_tokens and (not output or output[-1] not in stops):
        output.append(next_token(prefix_hash, choice_index))
        prefix_hash = extend_hash(prefix_hash, output[-1])
    return output


def expected_vector(prompt: Iterable[int]) -> bytes:
    """Returns the "embedding" of a prompt: eight bytes that depend on all of its tokens."""
    prefix_hash = 0
    for token_id in prompt:
        prefix_hash = extend_hash(prefix_hash, token_id)
    return prefix_hash.to_bytes(8, "little")


@dataclass(slots=True)
class _FakeSequence:
    slot: int
    token_ids: list[int]
    num_computed_tokens: int
    choice_index: int
    is_pooled: bool = False
    block_ids: list[int] = field(default_factory=list)


class FakeModel:
    """Pages, slots and sequences of one epoch."""

    def __init__(
        self,
        *,
        num_blocks: int = 64,
        block_size: int = 4,
        max_num_seqs: int = 8,
        max_num_batched_tokens: int = 64,
        num_host_blocks: int = 0,
        pools_all_tokens: bool = False,
        weights: int = 0,
    ):
        """`pools_all_tokens`: a vector covers every token, so pooled sequences must arrive without computed tokens.
        `weights`: models with other weights give other tokens, those of `expected_output` for a choice of that
        index."""
        self.weights = weights
        self.pools_all_tokens = pools_all_tokens
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.num_host_blocks = num_host_blocks
        # Contents of each host slot: the pages of one block.
        self._host: dict[int, list[int | None]] = {}
        # Contents of each KV slot: the hash of the sequence up to and including the slot's token.
        self._pages: dict[int, int] = {}
        self._sequences: dict[int, _FakeSequence] = {}
        self._used_ids: set[int] = set()
        self._last_step_id = 0

    def step(self, plan: worker_pb2.StepPlan) -> worker_pb2.StepResult:
        """Runs one plan. Raises ContractError if the plan violates the contract."""
        _check(plan.step_id == self._last_step_id + 1, f"step {plan.step_id} after {self._last_step_id}")
        self._last_step_id = plan.step_id
        self._swap_out(_u32(plan.swap_out_blocks), _u32(plan.swap_out_slots))
        for wire_id in _u32(plan.released_wire_ids):
            _check(wire_id in self._sequences, f"release of unknown sequence {wire_id}")
            del self._sequences[wire_id]
        self._swap_in(_u32(plan.swap_in_slots), _u32(plan.swap_in_blocks))
        self._copy(_u32(plan.copy_sources), _u32(plan.copy_destinations))
        for new in plan.new_sequences:
            self._add(new)
        return self._run(plan.step_id, plan.rows)

    def _swap_out(self, blocks: list[int], slots: list[int]) -> None:
        _check(len(blocks) == len(slots) == len(set(slots)), "swap-out")
        _check(all(slot < self.num_host_blocks for slot in slots), "a host slot")
        for block_id, slot in zip(blocks, slots, strict=True):
            self._host[slot] = self._read(block_id)

    def _swap_in(self, slots: list[int], blocks: list[int]) -> None:
        _check(len(blocks) == len(slots) == len(set(blocks)), "swap-in")
        self._check_unused(blocks)
        for slot, block_id in zip(slots, blocks, strict=True):
            _check(slot in self._host, f"nothing was copied to host slot {slot}")
            self._write(block_id, self._host[slot])

    def _copy(self, sources: list[int], destinations: list[int]) -> None:
        _check(len(sources) == len(destinations), "copies")
        _check(len(set(destinations)) == len(destinations), "a block is copied to twice")
        _check(all(block_id < self.num_blocks for block_id in (*sources, *destinations)), "a block to copy")
        self._check_unused(destinations)
        for destination, pages in zip(destinations, [self._read(source) for source in sources], strict=True):
            self._write(destination, pages)

    def _check_unused(self, blocks: list[int]) -> None:
        in_use = {block_id for sequence in self._sequences.values() for block_id in sequence.block_ids}
        _check(not in_use.intersection(blocks), "a block in use is copied to")

    def _read(self, block_id: int) -> list[int | None]:
        size = self.block_size
        return [self._pages.get(slot) for slot in range(block_id * size, (block_id + 1) * size)]

    def _write(self, block_id: int, pages: list[int | None]) -> None:
        for slot, page in enumerate(pages, block_id * self.block_size):
            if page is None:
                self._pages.pop(slot, None)
            else:
                self._pages[slot] = page

    def _add(self, new: worker_pb2.NewSequence) -> None:
        _check(new.wire_id not in self._used_ids, f"sequence id {new.wire_id} used twice")
        _check(new.slot < self.max_num_seqs, f"slot {new.slot}")
        _check(all(s.slot != new.slot for s in self._sequences.values()), f"slot {new.slot} is taken")
        token_ids = _u32(new.token_ids)
        _check(0 < new.num_prompt_tokens <= len(token_ids), "prompt length")
        _check(new.num_computed_tokens < len(token_ids), "nothing left to compute")
        self._used_ids.add(new.wire_id)
        is_pooled = new.HasField("pooling")
        _check(not is_pooled or len(token_ids) == new.num_prompt_tokens, "a pooled sequence has output")
        _check(not (is_pooled and new.HasField("prompt_logprobs_from")), "pooled, and wants log probabilities")
        _check(not (is_pooled and self.pools_all_tokens and new.num_computed_tokens), "pooled over a part")
        sequence = _FakeSequence(new.slot, token_ids, new.num_computed_tokens, new.choice_index, is_pooled)
        self._sequences[new.wire_id] = sequence
        self._append_blocks(sequence, _u32(new.block_ids))

    def _run(self, step_id: int, rows: worker_pb2.Rows) -> worker_pb2.StepResult:
        wire_ids, slots = _u32(rows.wire_ids), _u32(rows.slots)
        scheduled, computed = _u32(rows.num_scheduled_tokens), _u32(rows.num_computed_tokens)
        offsets, new_blocks = _u32(rows.new_block_offsets), _u32(rows.new_block_ids)
        _check(len(wire_ids) == len(slots) == len(scheduled) == len(computed) == len(offsets) - 1, "columns")
        _check(len(set(wire_ids)) == len(wire_ids), "a sequence has two rows")
        _check(sum(scheduled) <= self.max_num_batched_tokens, f"{sum(scheduled)} tokens in one step")
        result_ids, result_tokens = array("I"), array("I")
        pooled = []
        for row, wire_id in enumerate(wire_ids):
            sequence = self._sequences.get(wire_id)
            if sequence is None:
                raise ContractError(f"row of unknown sequence {wire_id}")
            _check(sequence.slot == slots[row], f"sequence {wire_id} is in slot {sequence.slot}, not {slots[row]}")
            _check(sequence.num_computed_tokens == computed[row], f"position of {wire_id}: {computed[row]}")
            self._append_blocks(sequence, new_blocks[offsets[row] : offsets[row + 1]])
            self._forward(sequence, scheduled[row])
            if sequence.num_computed_tokens == len(sequence.token_ids):
                history = self._pages[self._kv_slot(sequence, len(sequence.token_ids) - 1)]
                if sequence.is_pooled:
                    pooled.append(worker_pb2.PooledSequence(wire_id=wire_id, embedding=history.to_bytes(8, "little")))
                    continue
                token_id = next_token(history, sequence.choice_index + self.weights)
                sequence.token_ids.append(token_id)
                result_ids.append(wire_id)
                result_tokens.append(token_id)
        return worker_pb2.StepResult(
            step_id=step_id, wire_ids=result_ids.tobytes(), token_ids=result_tokens.tobytes(), pooled=pooled
        )

    def _append_blocks(self, sequence: _FakeSequence, block_ids: list[int]) -> None:
        for block_id in block_ids:
            _check(block_id < self.num_blocks, f"block {block_id}")
            sequence.block_ids.append(block_id)

    def _forward(self, sequence: _FakeSequence, num_tokens: int) -> None:
        start = sequence.num_computed_tokens
        end = start + num_tokens
        _check(
            num_tokens > 0 and end <= len(sequence.token_ids), f"tokens {start} to {end} of {len(sequence.token_ids)}"
        )
        _check(end <= len(sequence.block_ids) * self.block_size, f"no block for position {end - 1}")
        # Like attention, check all pages of earlier tokens before writing new ones.
        history = 0
        for position in range(start):
            history = extend_hash(history, sequence.token_ids[position])
            page = self._pages.get(self._kv_slot(sequence, position))
            _check(page == history, f"page of position {position} holds something else")
        written = set(sequence.block_ids[start // self.block_size : (end - 1) // self.block_size + 1])
        for other in self._sequences.values():
            _check(other is sequence or not written.intersection(other.block_ids), "a block is written while shared")
        for position in range(start, end):
            history = extend_hash(history, sequence.token_ids[position])
            self._pages[self._kv_slot(sequence, position)] = history
        sequence.num_computed_tokens = end

    def _kv_slot(self, sequence: _FakeSequence, position: int) -> int:
        return sequence.block_ids[position // self.block_size] * self.block_size + position % self.block_size


def _check(condition: bool, message: str) -> None:
    if not condition:
        raise ContractError(message)


def _u32(column: bytes) -> list[int]:
    values = array("I")
    values.frombytes(column)
    return values.tolist()
