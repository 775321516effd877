"""Grammars over the step stream: compiled beside the steps, and answered for."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import grpc
import pytest
from llguidance import LLMatcher

from quire.inference.v1 import constraints_pb2
from quire.worker.v1 import worker_pb2
from services.worker.service import servicer as servicer_module
from services.worker.startup.load import LoadedWorker
from shared.grammar import GrammarError
from tests.fakes.waiting import HANG_S
from tests.integration.worker.client import Stream, claimed, new_sequence, rows, u32, values

GRAMMAR = 'start: "a"'


@pytest.fixture
def gate(engine: LoadedWorker, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """No grammar is compiled before it is set; then none can be."""
    gate = threading.Event()

    def compile_late(grammar: str) -> LLMatcher:
        gate.wait(HANG_S)
        raise GrammarError("it is the test's")

    monkeypatch.setattr(engine.grammars, "_compile", compile_late)
    engine.grammars._compiled.clear()
    yield gate
    gate.set()
    engine.grammars._compiled.clear()


async def prepare(stream: Stream, key: bytes, grammar: str, output: bytes | None = None) -> None:
    request = worker_pb2.PrepareGrammar(key=key, grammar=grammar, output_token_ids=output)
    await stream.call.write(worker_pb2.RunRequest(prepare=request))


def constrained(wire_id: int, slot: int, block_id: int) -> worker_pb2.NewSequence:
    sequence = new_sequence(wire_id, slot, [3, 4], [block_id])
    sequence.constraints.CopyFrom(constraints_pb2.TokenConstraints(grammar=GRAMMAR))
    return sequence


async def test_steps_go_on_while_a_grammar_is_compiled(channel: grpc.aio.Channel, gate: threading.Event) -> None:
    stream = await claimed(channel)
    await prepare(stream, b"key", GRAMMAR)
    result = await stream.step(new_sequences=[new_sequence(1, 0, [3, 4], [0])], rows=rows((1, 0, 2, 0)))
    assert values(result.wire_ids) == [1]
    for position in range(2, 6):
        result = await stream.step(rows=rows((1, 0, 1, position)))
        assert values(result.wire_ids) == [1]
    gate.set()
    prepared = (await stream._read()).prepared
    assert prepared.key == b"key"
    assert prepared.error == "The grammar of this request cannot be used: it is the test's."
    await stream.close()


async def test_the_next_owner_is_told_of_what_it_asked_for_itself(
    channel: grpc.aio.Channel, gate: threading.Event
) -> None:
    """The one before it was lost while its grammar was compiled; that goes on."""
    lost = await claimed(channel)
    await prepare(lost, b"the lost one's", GRAMMAR)
    await lost.step(new_sequences=[new_sequence(1, 0, [3, 4], [0])], rows=rows((1, 0, 2, 0)))
    lost.call.cancel()
    stream = await claimed(channel)
    await prepare(stream, b"its own", GRAMMAR)
    result = await stream.step(new_sequences=[new_sequence(1, 0, [3, 4], [0])], rows=rows((1, 0, 2, 0)))
    assert values(result.wire_ids) == [1]
    gate.set()
    assert (await stream._read()).prepared.key == b"its own"
    await stream.close()  # with nothing more to read


async def test_a_sequence_whose_grammar_fails_fails_alone(channel: grpc.aio.Channel, gate: threading.Event) -> None:
    """Also one that was planned before its grammar was prepared."""
    stream = await claimed(channel)
    await stream.plan(
        new_sequences=[new_sequence(1, 0, [3, 4], [0]), constrained(2, 1, 1)], rows=rows((1, 0, 2, 0), (2, 1, 2, 0))
    )
    gate.set()
    result = await stream.result()
    assert values(result.wire_ids) == [1]
    (error,) = result.errors
    assert (error.wire_id, error.message) == (2, "The grammar of this request failed: it is the test's.")
    assert error.is_request_at_fault
    await stream.close()


async def test_a_tokenizer_without_bytes_takes_no_grammar(channel: grpc.aio.Channel, engine: LoadedWorker) -> None:
    stream = await claimed(channel)
    await prepare(stream, b"key", GRAMMAR)
    prepared = (await stream._read()).prepared
    assert "this model's tokenizer does not support grammars" in prepared.error
    engine.grammars._compiled.clear()
    await stream.close()


async def test_an_owner_may_wait_for_so_many_grammars(
    channel: grpc.aio.Channel, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servicer_module, "MAX_PENDING_GRAMMARS", 2)
    stream = await claimed(channel)
    for key in (b"a", b"b", b"c"):
        await prepare(stream, key, GRAMMAR)
    with pytest.raises(grpc.aio.AioRpcError, match="2 grammars are being prepared already") as ended:
        await stream._read()
    assert ended.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_grammars_for_single_sequences_come_after_those_that_are_shared(
    channel: grpc.aio.Channel, gate: threading.Event
) -> None:
    stream = await claimed(channel)
    await prepare(stream, b"first", GRAMMAR)
    await prepare(stream, b"single", GRAMMAR, u32(3, 4))
    await prepare(stream, b"shared", 'start: "b"')
    result = await stream.step(new_sequences=[new_sequence(1, 0, [3, 4], [0])], rows=rows((1, 0, 2, 0)))
    assert values(result.wire_ids) == [1], "so the worker has read what came before"
    gate.set()
    prepared = [(await stream._read()).prepared for _ in range(3)]
    assert [one.key for one in prepared] == [b"first", b"shared", b"single"]
    assert prepared[2].error == "The grammar of this request failed: it is the test's."
    await stream.close()


async def test_half_a_token_ends_the_epoch(channel: grpc.aio.Channel, gate: threading.Event) -> None:
    stream = await claimed(channel)
    await prepare(stream, b"single", GRAMMAR, b"abc")
    with pytest.raises(grpc.aio.AioRpcError, match="no whole number of u32") as ended:
        await stream._read()
    assert ended.value.code() is grpc.StatusCode.INVALID_ARGUMENT
