"""Whatever a router writes into a Submit: it works or fails alone, with the name of the field, and a stream beside it
goes on at the same worker's epoch.
"""

from __future__ import annotations

import asyncio
import math
import os
import tempfile
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quire.inference.v1 import pooling_pb2, sampling_pb2
from quire.scheduler.v1 import scheduler_pb2
from quire.worker.v1 import worker_pb2
from services.router.config import RouterConfig
from services.router.constraints import resolution as router_constraints
from services.router.parameters import sampling as router_sampling
from services.scheduler import submit_checks
from services.worker.ops.reference import ReferenceOps
from services.worker.plan.step_plan import GeneratingSequence
from services.worker.sampling.host_sampler import HostSampler
from services.worker.service.converters import plan_from_proto
from shared.grammar import MAX_GRAMMAR_BYTES
from tests.fakes.fake_model import VOCAB_SIZE, ContractError, FakeModel, expected_output
from tests.fakes.fake_worker import FakeWorker, Script
from tests.integration.scheduler.driver import Router, running

# `make test-long` tries many times as much.
LONG = int(os.environ.get("QUIRE_TEST_FACTOR", "1"))
PROMPT = [3, 4, 5]
MAX_MODEL_LEN = 128
INVALID_ARGUMENT, DEADLINE_EXCEEDED = 3, 4
NEIGHBOUR = 1_000_000


class WorkersView(FakeModel):
    """Reads plans as the worker does, and gives the sequences to its sampler."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._sampler = HostSampler(ReferenceOps(torch.device("cpu"), torch.float32), self.max_num_seqs, VOCAB_SIZE)

    def step(self, plan: worker_pb2.StepPlan) -> worker_pb2.StepResult:
        try:
            sequences = plan_from_proto(plan).new_sequences
        except ValueError as error:
            raise ContractError(str(error)) from error
        for sequence in sequences:
            problem = sequence.check(VOCAB_SIZE)
            if isinstance(sequence, GeneratingSequence) and sequence.constraints is not None:
                problem = problem or sequence.constraints.check(VOCAB_SIZE)
            if problem is not None:
                raise ContractError(problem)
            if isinstance(sequence, GeneratingSequence):
                self._sampler.admit(sequence)
        return super().step(plan)


def fake_worker(**script: object) -> FakeWorker:
    worker = FakeWorker(make_model=WorkersView, script=Script(**script), max_model_len=MAX_MODEL_LEN)  # type: ignore[arg-type]
    worker.embedding = pooling_pb2.EmbeddingInfo(size=2, pooling=pooling_pb2.POOLING_TYPE_LAST)
    return worker


def column(*values: int) -> bytes:
    return array("I", values).tobytes()


def submit_of(sequence_id: int) -> scheduler_pb2.Submit:
    return scheduler_pb2.Submit(
        prompt_token_ids=column(*PROMPT),
        sampling=sampling_pb2.SamplingParams(temperature=0),
        stop=sampling_pb2.StopConditions(max_tokens=6),
        choices=[scheduler_pb2.Choice(sequence_id=sequence_id)],
    )


async def send(router: Router, submit: scheduler_pb2.Submit) -> list[int]:
    """The names of the Submit's sequences."""
    names = [choice.sequence_id for choice in submit.choices]
    for choice in submit.choices:
        received = choice.output_token_ids
        router.outputs[choice.sequence_id] = array("I", received[: len(received) // 4 * 4]).tolist()
    await router.write(scheduler_pb2.ConnectRequest(submit=submit))
    return names


def mutate(**columns: object) -> Callable[[scheduler_pb2.Submit], None]:
    """Sets fields by path: `constraints__allowed_token_ids`."""

    def apply(submit: scheduler_pb2.Submit) -> None:
        for path, value in columns.items():
            message: Message = submit
            *parents, name = path.split("__")
            for parent in parents:
                message = message.choices[0] if parent == "choice" else getattr(message, parent)  # type: ignore[attr-defined]
                message.SetInParent()
            if isinstance(value, list):
                del getattr(message, name)[:]
                getattr(message, name).extend(value)
            else:
                setattr(message, name, value)

    return apply


BIAS = sampling_pb2.LogitBias
CASES: list[tuple[str, Callable[[scheduler_pb2.Submit], None]]] = [
    ("request_id", mutate(request_id="x" * 70_000)),
    ("tenant", mutate(tenant="x" * 70_000)),
    ("cache_salt", mutate(cache_salt="x" * 70_000)),
    ("traceparent", mutate(traceparent="x" * 70_000)),
    ("prompt_token_ids", mutate(prompt_token_ids=b"1234567")),
    ("prompt_token_ids", mutate(prompt_token_ids=b"")),
    ("prompt_token_ids", mutate(prompt_token_ids=column(1, VOCAB_SIZE))),
    ("prompt_token_ids", mutate(prompt_token_ids=column(*[1] * (MAX_MODEL_LEN + 1)))),
    ("sampling.temperature", mutate(sampling__temperature=math.nan)),
    ("sampling.temperature", mutate(sampling__temperature=math.inf)),
    ("sampling.top_p", mutate(sampling__top_p=0.0)),
    ("sampling.min_p", mutate(sampling__min_p=-0.1)),
    ("sampling.repetition_penalty", mutate(sampling__repetition_penalty=0.0)),
    ("sampling.presence_penalty", mutate(sampling__presence_penalty=2.5)),
    ("sampling.frequency_penalty", mutate(sampling__frequency_penalty=-math.inf)),
    ("sampling.logprobs", mutate(sampling__logprobs=21)),
    ("sampling.prompt_logprobs", mutate(sampling__prompt_logprobs=2**32 - 1)),
    ("sampling.logit_bias[0].token_id", mutate(sampling__logit_bias=[BIAS(token_id=VOCAB_SIZE)])),
    ("sampling.logit_bias[1].bias", mutate(sampling__logit_bias=[BIAS(token_id=1), BIAS(token_id=2, bias=101)])),
    ("sampling.logit_bias", mutate(sampling__logit_bias=[BIAS(token_id=1)] * 1025)),
    ("sampling.logprob_token_ids", mutate(sampling__logprob_token_ids=[7, 7])),
    ("sampling.logprob_token_ids", mutate(sampling__logprob_token_ids=list(range(21)))),
    ("sampling.logprob_token_ids", mutate(sampling__logprob_token_ids=[VOCAB_SIZE])),
    ("stop.max_tokens", mutate(stop__max_tokens=0)),
    ("stop.max_tokens", mutate(stop__max_tokens=2**32 - 1)),
    ("stop.min_tokens", mutate(stop__min_tokens=MAX_MODEL_LEN + 1)),
    ("stop.stop_token_ids", mutate(stop__stop_token_ids=[VOCAB_SIZE])),
    ("stop.stop_token_ids", mutate(stop__stop_token_ids=[1] * 257)),
    ("choices[0].output_token_ids", mutate(choice__output_token_ids=b"12345")),
    ("choices[0].output_token_ids", mutate(choice__output_token_ids=column(VOCAB_SIZE))),
    ("choices[0].output_token_ids", mutate(choice__output_token_ids=column(*[1] * 7))),
    ("choices[0].choice_index", mutate(choice__choice_index=1024)),
    ("choices[0].choice_index", mutate(choice__choice_index=2**32 - 1)),
    ("choices[0].num_prompt_logprobs", mutate(choice__num_prompt_logprobs=3)),
    ("choices", mutate(choices=[scheduler_pb2.Choice(sequence_id=1 + index) for index in range(1025)])),
    ("choices[1].sequence_id", mutate(choices=[scheduler_pb2.Choice(sequence_id=1)] * 2)),
    ("constraints.min_tokens", mutate(constraints__min_tokens=2**32 - 1)),
    ("constraints.grammar", mutate(constraints__grammar="x" * (MAX_GRAMMAR_BYTES + 1))),
    ("constraints.end_token_ids", mutate(constraints__end_token_ids=b"12")),
    ("constraints.allowed_token_ids", mutate(constraints__allowed_token_ids=b"123")),
    ("constraints.allowed_token_ids", mutate(constraints__allowed_token_ids=column(VOCAB_SIZE))),
    ("constraints.bad_word_token_ids", mutate(constraints__bad_word_token_ids=b"123")),
    ("constraints.bad_word_offsets", mutate(constraints__bad_word_token_ids=column(1))),
    ("constraints.bad_word_offsets", mutate(constraints__bad_word_offsets=b"123")),
    (
        "constraints.bad_word_offsets",
        mutate(constraints__bad_word_token_ids=column(1, 2), constraints__bad_word_offsets=column(0, 9)),
    ),
    (
        "constraints.bad_word_offsets",
        mutate(constraints__bad_word_token_ids=column(1, 2), constraints__bad_word_offsets=column(0, 5, 2)),
    ),
    (
        "constraints.bad_word_offsets",
        mutate(constraints__bad_word_token_ids=column(1, 2), constraints__bad_word_offsets=column(0, 0, 2)),
    ),
    ("constraints.bad_word_offsets", mutate(constraints__bad_word_offsets=column(*range(2050)))),
    (
        "constraints.thinking_end_token_id",
        mutate(constraints__thinking_budget=1, constraints__thinking_end_token_id=VOCAB_SIZE),
    ),
    (
        "constraints.thinking_begin_token_id",
        mutate(constraints__thinking_budget=1, constraints__thinking_begin_token_id=2**32 - 1),
    ),
    ("classification.second_text_at", mutate(classification__second_text_at=len(PROMPT) + 1)),
    ("classification", mutate(pooling__normalize=True, classification__second_text_at=1)),
    ("pooling.dimensions", mutate(pooling__dimensions=3)),
    ("choices", mutate(pooling__normalize=True, choices=[scheduler_pb2.Choice(sequence_id=s) for s in (1, 2)])),
    ("choices[0].output_token_ids", mutate(pooling__normalize=True, choice__output_token_ids=column(1))),
]  # fmt: skip


async def test_each_malformed_submit_fails_alone_with_the_name_of_its_field(tmp_path: Path) -> None:
    gate = asyncio.Semaphore(1)
    worker = fake_worker(gate=gate)
    async with running(tmp_path, worker) as stack:
        router = await stack.router()
        await router.submit(NEIGHBOUR, PROMPT, 40)
        while not router.outputs[NEIGHBOUR]:
            await router.read()
        for field, apply in CASES:
            submit = submit_of(1)
            apply(submit)
            names = set((await send(router, submit))[: submit_checks.MAX_CHOICES])
            await router.read_until_finished(*names)
            for name in names:
                finished = router.finished.pop(name)
                assert finished.error.code == INVALID_ARGUMENT, field
                assert finished.error.message.startswith(f"Invalid '{field}': "), finished.error.message
                assert len(finished.error.message) < 200
        assert NEIGHBOUR not in router.finished, "it was to run beside all of them"
        for _ in range(1000):
            gate.release()
        await router.read_until_finished(NEIGHBOUR)
        assert router.outputs[NEIGHBOUR] == expected_output(PROMPT, 40)
        assert worker.epoch == 1


async def test_a_submit_without_choices_is_nobody_s_end(tmp_path: Path) -> None:
    async with running(tmp_path, fake_worker()) as stack:
        router = await stack.router()
        await router.write(scheduler_pb2.ConnectRequest(submit=scheduler_pb2.Submit()))
        await router.submit(1, PROMPT, 10)
        await router.read_until_finished(1)
        assert router.outputs[1] == expected_output(PROMPT, 10)


async def test_a_malformed_abort_is_ignored_and_a_long_one_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gate = asyncio.Semaphore(1)
    async with running(tmp_path, fake_worker(gate=gate)) as stack:
        router = await stack.router()
        for name in (1, 2):
            await router.submit(name, PROMPT, 40)
        await router.write(scheduler_pb2.ConnectRequest(abort=scheduler_pb2.Abort(sequence_ids=b"\x01\0\0\0\x02")))
        await router.abort(*range(10, 100_000), 2)
        await stack.stats_when(lambda stats: stats.num_aborted == 1)
        for _ in range(1000):
            gate.release()
        await router.read_until_finished(1)
        assert router.outputs[1] == expected_output(PROMPT, 40)
    assert "Invalid 'sequence_ids': 5 bytes are no whole number of u32." in caplog.text


def test_what_a_router_sends_is_within_the_bounds() -> None:
    assert RouterConfig().max_n <= submit_checks.MAX_CHOICES
    assert router_sampling.MAX_LOGIT_BIAS <= submit_checks.MAX_LOGIT_BIAS
    assert router_sampling.MAX_STOP_TOKEN_IDS <= submit_checks.MAX_STOP_TOKEN_IDS
    assert 2 * router_constraints.MAX_BAD_WORDS <= submit_checks.MAX_BAD_WORDS


# -- Any value in any field ----------------------------------------------------------------------------------------

NUMBERS = st.sampled_from([0, 1, 2, 20, 21, 127, 128, 511, 512, 2**31 - 1])
UINT32 = NUMBERS | st.sampled_from([2**31, 2**32 - 1])
UINT64 = UINT32 | st.sampled_from([2**63, 2**64 - 1])
COLUMNS = st.binary(max_size=24) | st.lists(st.sampled_from([0, 1, 2, 511, 512, 2**32 - 1]), max_size=6).map(
    lambda ids: column(*ids)
)
FLOATS = st.sampled_from([0.0, 0.5, 1.0, 2.0, 2.1, -2.0, 100.0, 101.0, 1e38, math.inf, -math.inf, math.nan])
STRINGS = st.sampled_from(["", "x", "\0", "ü" * 70_000])
BY_TYPE = {
    FieldDescriptor.TYPE_BYTES: COLUMNS,
    FieldDescriptor.TYPE_STRING: STRINGS,
    FieldDescriptor.TYPE_FLOAT: FLOATS,
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_UINT32: UINT32,
    FieldDescriptor.TYPE_UINT64: UINT64,
    FieldDescriptor.TYPE_SINT32: NUMBERS | st.integers(-(2**31), -1),
}


def fields_of(message: Message, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every field, and those of the messages in it."""
    for field in message.DESCRIPTOR.fields:
        if field.message_type is None or field.is_repeated:
            yield (*path, field.name), field
        if field.name == "choices":
            yield from fields_of(scheduler_pb2.Choice(), (*path, "choices"))
        elif field.message_type is not None and not field.is_repeated:
            yield from fields_of(getattr(message, field.name), (*path, field.name))


FIELDS = list(fields_of(scheduler_pb2.Submit()))


@st.composite
def mutations(draw: st.DrawFn) -> Callable[[scheduler_pb2.Submit], None]:
    path, field = draw(st.sampled_from(FIELDS))
    if field.name == "logit_bias":
        entry = st.builds(BIAS, token_id=NUMBERS, bias=FLOATS)
        values: object = draw(st.lists(entry, max_size=3) | st.just([BIAS()] * 1025))
    elif field.name == "choices":
        # Names of their own are given when they are sent.
        values = [scheduler_pb2.Choice() for _ in range(draw(st.sampled_from([0, 2, 3])))]
    elif field.is_repeated:
        values = draw(st.lists(BY_TYPE[field.type], max_size=3) | st.just([1] * 1025))
    else:
        values = draw(BY_TYPE[field.type])

    def apply(submit: scheduler_pb2.Submit) -> None:
        if path[0] == "choices" and len(path) > 1:
            for choice in submit.choices[:1]:
                setattr(choice, field.name, values)
        else:
            mutate(**{"__".join(path): values})(submit)

    return apply


def test_every_field_is_mutated() -> None:
    paths = {".".join(path) for path, _ in FIELDS}
    assert {"prompt_token_ids", "choices.attempt", "constraints.bad_word_offsets", "sampling.logit_bias"} <= paths
    assert len(paths) > 40


@settings(
    max_examples=12 * LONG, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(st.lists(st.lists(mutations(), min_size=1, max_size=2), min_size=8, max_size=24))
def test_whatever_is_in_a_submit_it_works_or_fails_alone(
    submits: list[list[Callable[[scheduler_pb2.Submit], None]]],
) -> None:
    asyncio.run(_run(submits))


async def _run(submits: list[list[Callable[[scheduler_pb2.Submit], None]]]) -> None:
    worker = fake_worker()
    with tempfile.TemporaryDirectory() as directory:
        async with running(Path(directory), worker) as stack:
            router = await stack.router()
            await router.submit(NEIGHBOUR, PROMPT, 100)
            names: list[int] = []
            for number, changes in enumerate(submits):
                submit = submit_of(0)
                for change in changes:
                    change(submit)
                for index, choice in enumerate(submit.choices):
                    choice.sequence_id = 10 * number + index
                names += await send(router, submit)
            await router.read_until_finished(NEIGHBOUR, *names)
            assert router.outputs[NEIGHBOUR] == expected_output(PROMPT, 100)
            assert worker.epoch == 1, "a Submit cost the worker its epoch"
            for name in names:
                finished = router.finished[name]
                if finished.reason == sampling_pb2.FINISH_REASON_ERROR:
                    assert finished.error.code in (INVALID_ARGUMENT, DEADLINE_EXCEEDED), finished
            load = (await stack.stats()).load
            assert load.num_used_blocks == load.num_running == load.num_waiting == 0


def test_the_codes_are_grpc_s() -> None:
    assert grpc.StatusCode.INVALID_ARGUMENT.value[0] == INVALID_ARGUMENT
    assert grpc.StatusCode.DEADLINE_EXCEEDED.value[0] == DEADLINE_EXCEEDED
