"""Whatever arrives, in whatever order: nothing leaks, nothing is used twice, and every sequence ends with the right
tokens.
"""

from __future__ import annotations

import math
import os
from array import array
from collections import Counter, deque
from collections.abc import Sequence as Items
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, precondition, rule

from quire.inference.v1 import pooling_pb2, sampling_pb2
from quire.worker.v1 import worker_pb2
from services.scheduler.converters import plan_to_proto, result_from_proto
from services.scheduler.core.config import CoreConfig, PreemptionMode
from services.scheduler.core.content import Content
from services.scheduler.core.request import Generate, Pool, Preparation
from services.scheduler.core.scheduler import Scheduler
from services.scheduler.core.sequence import FinishReason, Sequence
from services.scheduler.worker_request import WorkerRequest
from tests.fakes.fake_model import EOS_TOKEN_ID, VOCAB_SIZE, FakeModel, expected_output, expected_vector
from tests.fakes.fake_worker import fail
from tests.unit.scheduler.contents import CONTENTS, insert, replace

# `make test-long` tries many times as much.
LONG = int(os.environ.get("QUIRE_TEST_FACTOR", "1"))
SAMPLING = sampling_pb2.SamplingParams()
COMMON = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]
COMMON += expected_output(COMMON, 30)


def name(sequence: Sequence[WorkerRequest]) -> int:
    assert isinstance(sequence.request.key, int)
    return sequence.request.key


class SchedulerMachine(RuleBasedStateMachine):
    """The core against the fake worker, which checks every plan and whose tokens depend on every page it reads."""

    keys = Bundle("keys")

    @initialize(
        num_blocks=st.integers(8, 24),
        block_size=st.sampled_from([1, 2, 4, 8]),
        max_num_seqs=st.integers(1, 6) | st.just(17),  # one slot of 16 is kept for the first sequences of requests
        budget=st.integers(6, 24),
        is_fair=st.booleans(),
        target_tbt_s=st.sampled_from([None, 0.001, 0.02]),
        num_host_blocks=st.integers(0, 12),
        preemption_mode=st.sampled_from(PreemptionMode),
        swap_cost=st.sampled_from([0.0, 1e-5, math.inf]),
        is_chunked=st.sampled_from([True, True, True, False]),
    )
    def start(
        self,
        num_blocks: int,
        block_size: int,
        max_num_seqs: int,
        budget: int,
        is_fair: bool,
        target_tbt_s: float | None,
        num_host_blocks: int,
        preemption_mode: PreemptionMode,
        swap_cost: float,
        is_chunked: bool,
    ) -> None:
        self.model_args: dict[str, Any] = {
            "num_blocks": num_blocks,
            "block_size": block_size,
            "num_host_blocks": num_host_blocks,
        }
        self.config = CoreConfig(
            num_blocks=num_blocks,
            block_size=block_size,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max(budget, max_num_seqs),
            # A step holds the longest prompt that is computed whole.
            max_model_len=num_blocks * block_size
            if is_chunked
            else min(max(budget, max_num_seqs), num_blocks * block_size),
            max_num_queued_reqs=1_000,
            fair_queueing=is_fair,
            target_tbt_s=target_tbt_s if is_chunked else None,
            chunked_prefill=is_chunked,
            num_host_blocks=num_host_blocks,
            preemption_mode=preemption_mode,
            seconds_per_swapped_block=swap_cost,
        )
        self.core: Scheduler[WorkerRequest] = Scheduler(self.config)
        self.worker = self._new_worker()
        self.results: deque[worker_pb2.StepResult] = deque()
        # For each plan in flight, the keys of the sequences that it computes; and their keys by wire id.
        self.plans: deque[set[int]] = deque()
        self.by_wire_id: dict[int, int] = {}
        # Number of workers that exited while they computed a sequence alone, since its last token.
        self.num_exits_alone: Counter[int] = Counter()
        # Of this worker.
        self.asked: list[bytes] = []
        self.prepared: set[bytes] = set()
        self.requests: dict[int, WorkerRequest] = {}
        self.outputs: dict[int, list[int]] = {}
        self.group_prompts: dict[int, tuple[list[int], tuple[Content, ...]]] = {}
        self.next_key = 0
        self.now = 0.0

    def _new_worker(self) -> FakeModel:
        return FakeModel(
            **self.model_args,
            max_num_seqs=self.config.max_num_seqs,
            max_num_batched_tokens=self.config.max_num_batched_tokens,
        )

    @rule(
        target=keys,
        # Prompts that have their beginning in common, and begin with what others were answered.
        common=st.integers(0, 40),
        prompt=st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=20),
        max_tokens=st.integers(1, 30),
        patience=st.none() | st.integers(1, 40),
        choice_index=st.integers(0, 2),
        group=st.none() | st.integers(0, 3),
        turn_id=st.none() | st.integers(0, 2),
        cache_salt=st.sampled_from(["", "", "", "tenant"]),
        priority=st.integers(0, 2),
        tenant=st.sampled_from(["", "a", "b"]),
        needs=st.none() | st.sampled_from([Preparation(b"x"), Preparation(b"y"), Preparation(b"z")]),
        # Of all tokens, of the last alone, or not at all.
        pooled=st.sampled_from([None, None, None, False, True]),
        contents=CONTENTS,
    )
    def submit(
        self,
        common: int,
        prompt: list[int],
        max_tokens: int,
        patience: int | None,
        choice_index: int,
        group: int | None,
        turn_id: int | None,
        cache_salt: str,
        priority: int,
        tenant: str,
        needs: Preparation | None,
        pooled: bool | None,
        contents: tuple[Content, ...],
    ) -> int:
        prompt, contents = insert(COMMON[:common] + prompt, contents)
        if pooled is not None:
            group = None
        if group is not None:
            # Choices of one request have one prompt.
            prompt, contents = self.group_prompts.setdefault(group, (prompt, contents))
        limit = self.config.max_model_len
        prompt, contents = insert(prompt[: max(1, limit - 1)], contents)
        max_tokens = min(max_tokens, limit - len(prompt))
        key = self.next_key
        self.next_key += 1
        if max_tokens < 1:
            return key
        request = WorkerRequest(
            key=key,
            prompt_token_ids=array("I", prompt),
            work=Generate(max_tokens, frozenset([EOS_TOKEN_ID, 7])) if pooled is None else Pool(pooled),
            pooling=None if pooled is None else pooling_pb2.PoolingParams(),
            choice_index=choice_index,
            turn_id=turn_id,
            group=None if group is None else (group, tuple(prompt)),
            cache_salt=cache_salt,
            contents=contents,
            priority=priority,
            tenant=tenant,
            sampling=SAMPLING,
            needs=needs,
            deadline=None if patience is None else self.now + patience,
        )
        self.core.submit(request)
        self.requests[key] = request
        self.outputs[key] = []
        return key

    @rule(key=consumes(keys))
    def abort(self, key: int) -> None:
        assert self.core.abort(key) == (key in self.requests)
        self.requests.pop(key, None)

    @precondition(lambda self: len(self.results) < 3)
    @rule()
    def schedule(self) -> None:
        plan = self.core.schedule()
        wanted = [preparation.key for preparation in self.core.preparations.take_wanted()]
        assert not {*wanted} & {*self.asked}, "asked for twice"
        self.asked += wanted
        if plan is None:
            assert self.results or self.asked or not self.requests, "nothing is planned although there is work"
            return
        for new in plan.new_sequences:
            needs = new.sequence.needs
            assert needs is None or needs.key in self.prepared, "planned before it was prepared"
            if needs is not None and needs.output_token_ids is not None:
                assert list(needs.output_token_ids) == self.outputs[name(new.sequence)]
                self.prepared.remove(needs.key)  # it has it for itself
        assert plan.num_tokens <= self.config.max_num_batched_tokens
        for new in plan.new_sequences:
            assert self.config.chunked_prefill or new.wire_id in plan.sampling_wire_ids, "a prompt was cut"
            assert new.sequence.request.work.can_resume or not new.num_computed_tokens, (
                "a vector lacks some of its tokens"
            )
        self.by_wire_id |= {new.wire_id: name(new.sequence) for new in plan.new_sequences}
        self.plans.append({self.by_wire_id[wire_id] for wire_id in plan.rows.wire_ids})
        message = plan_to_proto(plan, epoch=1)
        for new, told in zip(plan.new_sequences, message.new_sequences, strict=True):
            told.token_ids = array("I", seen(new.sequence.request, new.sequence.token_ids)).tobytes()
        self.results.append(self.worker.step(message))

    @precondition(lambda self: self.results)
    @rule(fails=st.integers(0, 20), outgrows=st.integers(0, 10), run_us=st.integers(0, 30_000))
    def apply(self, fails: int = 1, outgrows: int = 1, run_us: int = 0) -> None:
        result = self.results.popleft()
        self.plans.popleft()
        result.timings.run_us = run_us
        if not fails and result.wire_ids:
            # The device computed no numbers for the first of them.
            fail(result, array("I", result.wire_ids)[0])
        if not outgrows and result.wire_ids:
            # The last of them needs its grammar for itself, if it has one.
            wire_id = array("I", result.wire_ids)[-1]
            request = self.requests.get(self.by_wire_id[wire_id])
            if request is not None and request.needs is not None:
                fail(result, wire_id, needs_own_grammar=True)
        outcome = self.core.apply(result_from_proto(result))
        for sequence, output_index, token_id, _ in outcome.tokens:
            output = self.outputs[name(sequence)]
            assert output_index == len(output), "a token is lost or doubled"
            output.append(token_id)
            self.num_exits_alone[name(sequence)] = 0
        for end in outcome.finished:
            key = name(end.sequence)
            request = self.requests.pop(key)
            if end.reason is FinishReason.ERROR:
                continue
            if request.work.gives_vector:
                assert end.embedding == expected_vector(seen(request, request.prompt_token_ids))
                assert not self.outputs[key]
                continue
            assert self.outputs[key] == self._expected(request)
            stopped = self.outputs[key][-1] in request.work.stop_token_ids
            assert end.reason is (FinishReason.STOP if stopped else FinishReason.LENGTH)

    @precondition(lambda self: self.asked)
    @rule(which=st.integers(0, 2), fails=st.integers(0, 5))
    def prepare(self, which: int = 0, fails: int = 1) -> None:
        key = self.asked.pop(which % len(self.asked))
        if fails:
            self.prepared.add(key)
        for end in self.core.prepared(key, "" if fails else "it cannot be prepared"):
            request = self.requests.pop(name(end.sequence))
            assert request.needs is not None
            assert key.startswith(request.needs.key)

    @rule(seconds=st.integers(1, 10))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds
        for end in self.core.expire(self.now):
            request = self.requests.pop(name(end.sequence))
            assert request.deadline is not None
            assert request.deadline <= self.now

    @rule(moves=st.booleans(), is_exit=st.booleans())
    def worker_dies(self, moves: bool, is_exit: bool) -> None:
        """Its sequences wait for the next worker, or move to another group."""
        in_flight = set().union(*self.plans)
        for key in self.requests if is_exit else ():
            # The worker may have been at any of the preparations that it was asked for.
            needs = next(sequence.needs for sequence in self.core.sequences if name(sequence) == key)
            prepares = not in_flight and needs is not None and needs.key in self.asked
            if prepares or (in_flight == {key} and not self.asked):
                self.num_exits_alone[key] += 1
        for end in self.core.reset(is_exit=is_exit):
            assert self.num_exits_alone[name(end.sequence)] >= 2, "it fails for an exit that others may have caused"
            del self.requests[name(end.sequence)]
        if moves:
            last, self.core = self.core, Scheduler(self.config, self.core.counters)
            for sequence in last.drain():
                self.core.adopt(sequence)
            last.check_integrity()
            assert last.memory.pool.num_used == 0
        self.worker = self._new_worker()
        self.results.clear()
        self.plans.clear()
        self.asked.clear()
        self.prepared.clear()

    @invariant()
    def is_consistent(self) -> None:
        if hasattr(self, "core"):
            self.core.check_integrity()

    def teardown(self) -> None:
        """Left alone, everything that is still here finishes, and all blocks are free."""
        if not hasattr(self, "core"):
            return
        for _ in range(5_000):
            if not self.requests and not self.results:
                break
            self.schedule()
            if self.asked:
                self.prepare()
            if self.results:
                self.apply()
        assert not self.requests, "a sequence never finishes"
        self.core.check_integrity()
        assert self.core.memory.pool.num_used == 0

    def _expected(self, request: WorkerRequest) -> list[int]:
        return expected_output(
            seen(request, request.prompt_token_ids),
            request.work.max_tokens,
            request.work.stop_token_ids,
            request.choice_index,
        )


def seen(request: WorkerRequest, token_ids: Items[int]) -> list[int]:
    """Returns the tokens with their contents, of which the worker knows."""
    return replace(token_ids, request.contents, VOCAB_SIZE)


SchedulerMachine.TestCase.settings = settings(max_examples=150 * LONG, stateful_step_count=60, deadline=None)
TestSchedulerMachine = SchedulerMachine.TestCase
