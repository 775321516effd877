"""Malformed messages on the scheduler's port, to which routers connect."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable
from functools import partial

import grpc

from benchmarks.abuse.attack import Answer, Attack, Row, Target
from quire.inference.v1 import sampling_pb2
from quire.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc

_ANSWER_SECONDS = 20.0


# A scheduler requires every field.
_GREEDY = sampling_pb2.SamplingParams(
    temperature=0, top_k=0, top_p=1, min_p=0, repetition_penalty=1, presence_penalty=0, frequency_penalty=0, seed=1
)


def _submit() -> scheduler_pb2.Submit:
    submit = scheduler_pb2.Submit(prompt_token_ids=array("I", range(10, 42)).tobytes())
    submit.choices.add(sequence_id=1)
    submit.stop.max_tokens = 4
    submit.sampling.MergeFrom(_GREEDY)
    return submit


def _prompt(submit: scheduler_pb2.Submit) -> None:
    submit.prompt_token_ids = b"1234567"


def _allowed(submit: scheduler_pb2.Submit) -> None:
    submit.constraints.allowed_token_ids = b"123"


def _bad_words(submit: scheduler_pb2.Submit) -> None:
    submit.constraints.bad_word_token_ids = array("I", [10, 11]).tobytes()
    submit.constraints.bad_word_offsets = array("I", [0, 1000]).tobytes()


def submitting(spoil: Callable[[scheduler_pb2.Submit], None]) -> Attack:
    """Returns an attack that connects as a router and submits a malformed request. The status of the answer is 400 if
    only the sequence fails, with INVALID_ARGUMENT; 500 if it fails otherwise; and 0 if the whole stream ends."""

    async def attack(target: Target) -> Answer:
        submit = _submit()
        spoil(submit)
        async with grpc.aio.insecure_channel(target.scheduler) as channel:
            stub: scheduler_pb2_grpc.SchedulerServiceAsyncStub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
            call = stub.Connect()
            try:
                async with asyncio.timeout(_ANSWER_SECONDS):
                    await call.write(scheduler_pb2.ConnectRequest(hello=scheduler_pb2.RouterHello(router_id="abuse")))
                    await call.write(scheduler_pb2.ConnectRequest(submit=submit))
                    async for response in call:
                        for finished in response.frame.finished:
                            is_refused = finished.error.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
                            return Answer(400 if is_refused else 500, finished.error.message or "finished")
            except grpc.aio.AioRpcError as error:
                return Answer(0, f"the stream ended: {error.code().name}: {error.details()}")
            except TimeoutError:
                return Answer(0, "no answer")
            finally:
                call.cancel()
        return Answer(0, "the stream ended")

    return attack


ROWS = (
    Row("scheduler's port: prompt_token_ids of 7 bytes", partial(submitting, _prompt)),
    Row("scheduler's port: allowed_token_ids of 3 bytes", partial(submitting, _allowed)),
    Row("scheduler's port: bad_word_offsets past the end", partial(submitting, _bad_words)),
)
