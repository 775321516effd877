"""Answers that are large and lawful come in pieces; those that would be too large are refused by the field's name."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from quire.inference.v1 import inference_pb2, inference_pb2_grpc, sampling_pb2
from services.router.apis.typed import converters
from services.router.generation import choice_delta, logprob_count
from services.router.http import json as json_pieces
from services.router.limits import unread_answers
from services.router.rpc.calls import Calls
from tests.fakes.waiting import until
from tests.integration.gateway import http2
from tests.integration.router.conftest import MODEL, StartRouter, answer_text, fake_scheduler

PROMPTS = [[72 + index % 40 for index in range(length)] for length in (50, 1, 31)]


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_pieces, "PIECE_BYTES", 500)
    monkeypatch.setattr(choice_delta, "MAX_TOKENS_WITH_LOGPROBS", 7)


def joined(events: list[Any], index: int) -> tuple[str, dict[str, list[Any]]]:
    """The text and the log probabilities of one choice."""
    choices = [event["choices"][0] for event in events if event["choices"] and event["choices"][0]["index"] == index]
    columns: dict[str, list[Any]] = {}
    for choice in choices:
        for name, column in (choice["logprobs"] or {}).items():
            columns.setdefault(name, []).extend(column)
    return "".join(choice["text"] for choice in choices), columns


@pytest.mark.usefixtures("small_pieces")
async def test_an_echoed_prompt_s_log_probabilities_come_in_pieces(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler(answer_text("one two three")))
    body: dict[str, Any] = {"prompt": PROMPTS, "echo": True, "logprobs": 3, "n": 2}
    reply = await api.complete(**body)
    assert len(reply.messages) > 20
    # Each piece ends with the text that filled it.
    assert max(map(len, reply.messages)) < 2_000
    choices = reply.json["choices"]
    assert len(choices) == 6
    for choice in choices:
        prompt, logprobs = PROMPTS[choice["index"] // 2], choice["logprobs"]
        assert {len(column) for column in logprobs.values()} == {len(logprobs["tokens"])}
        assert len(logprobs["tokens"]) > len(prompt)
        assert logprobs["token_logprobs"][0] is None
        assert logprobs["token_logprobs"][1] == pytest.approx(-prompt[1] / 100 if len(prompt) > 1 else -0.5)
        offsets = logprobs["text_offset"]
        assert offsets == sorted(offsets)
    streamed = await api.complete(stream=True, **body)
    for choice in choices:
        assert joined(streamed.events, choice["index"]) == (choice["text"], choice["logprobs"])


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("method", ["CreateChatCompletion", "CreateChatCompletionBatch", "CreateResponse"])
async def test_every_api_s_log_probabilities_come_in_pieces(start_router: StartRouter, method: str) -> None:
    api = await start_router(fake_scheduler(answer_text("one two three four five six seven eight")))
    message = {"role": "user", "content": "Hello"}
    bodies: dict[str, Any] = {
        "CreateChatCompletion": {"messages": [message], "logprobs": True, "top_logprobs": 5, "n": 4},
        "CreateChatCompletionBatch": {"messages": [[message]] * 4, "logprobs": True, "top_logprobs": 5},
        "CreateResponse": {"input": "Hello", "top_logprobs": 5},
    }
    reply = await api.post(method, {"model": MODEL} | bodies[method])
    assert len(reply.messages) > 5
    assert max(map(len, reply.messages)) < 3_000
    if method == "CreateResponse":
        tokens = reply.json["output"][0]["content"][0]["logprobs"]
    else:
        tokens = [entry for choice in reply.json["choices"] for entry in choice["logprobs"]["content"]]
        assert len(reply.json["choices"]) == 4
    assert all(len(token["top_logprobs"]) == 5 for token in tokens)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": PROMPTS, "echo": True, "logprobs": 3, "max_tokens": 1}, "logprobs"),
        ({"prompt": PROMPTS, "prompt_logprobs": 3, "max_tokens": 1}, "prompt_logprobs"),
        ({"prompt": "a", "n": 4, "logprobs": 3, "max_tokens": 20}, "max_tokens"),
    ],
)
async def test_what_would_be_too_many_is_refused_by_name(
    start_router: StartRouter, monkeypatch: pytest.MonkeyPatch, body: dict[str, Any], param: str
) -> None:
    monkeypatch.setattr(logprob_count, "MAX_LOGPROBS_OF_ANSWER", 300)
    api = await start_router(fake_scheduler())
    refusal = await api.refused("CreateCompletion", {"model": MODEL} | body)
    assert (refusal.error["param"], refusal.error["code"]) == (param, "too_many_logprobs")
    assert refusal.status.value[0] == 3


async def test_an_answer_without_a_limit_gets_what_is_allowed(
    start_router: StartRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logprob_count, "MAX_LOGPROBS_OF_ANSWER", 30)
    scheduler = fake_scheduler()
    api = await start_router(scheduler)
    await api.chat(logprobs=True, top_logprobs=2)
    assert scheduler.submits[-1].stop.max_tokens == 10
    # A stream holds nothing of what was sent.
    await api.chat(logprobs=True, top_logprobs=2, stream=True, max_tokens=20)
    assert scheduler.submits[-1].stop.max_tokens == 20
    # The last events of this one repeat all of it.
    streamed = {"input": "Hello", "top_logprobs": 2, "stream": True}
    await api.post("CreateResponse", {"model": MODEL} | streamed)
    assert scheduler.submits[-1].stop.max_tokens == 10
    refusal = await api.refused("CreateResponse", {"model": MODEL, "max_output_tokens": 20} | streamed)
    assert (refusal.error["param"], refusal.error["code"]) == ("max_output_tokens", "too_many_logprobs")


@pytest.mark.usefixtures("small_pieces")
async def test_typed_prompt_log_probabilities_come_in_several_deltas(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler(answer_text("one two three four five six seven eight nine ten")))
    stub: inference_pb2_grpc.InferenceServiceAsyncStub = inference_pb2_grpc.InferenceServiceStub(api.channel)
    sampling = sampling_pb2.SamplingParams(prompt_logprobs=2, logprobs=2)
    request = inference_pb2.GenerateRequest(
        model=MODEL,
        token_ids=inference_pb2.TokenIds(ids=PROMPTS[0]),
        options=inference_pb2.GenerationOptions(sampling=sampling, n=2),
    )
    for whole in (False, True):
        request.whole = whole
        deltas = [response.delta async for response in stub.Generate(request) if response.HasField("delta")]
        for index in (0, 1):
            own = [delta for delta in deltas if delta.choice_index == index]
            assert all(len(delta.prompt_logprobs) <= 7 and len(delta.logprobs) <= 7 for delta in own)
            assert [entry.token_id for delta in own for entry in delta.prompt_logprobs] == PROMPTS[0][1:]
            token_ids = [token_id for delta in own for token_id in delta.token_ids]
            assert [entry.token_id for delta in own for entry in delta.logprobs] == token_ids
            assert [bool(delta.finish_reason) for delta in own] == [False] * (len(own) - 1) + [True]


ARGUMENT = "x" * 950


@pytest.mark.parametrize(
    ("tool_format", "text", "content", "arguments"),
    [
        # Until the parser knows what follows, it does not know whether the spaces are part of the content.
        ("hermes", f"Hello{' ' * 950}end", f"Hello{' ' * 950}end", ""),
        ("pythonic", f'[f(a="{ARGUMENT}")]', "", f'{{"a": "{ARGUMENT}"}}'),
    ],
)
async def test_what_a_parser_held_back_comes_in_several_deltas(
    start_router: StartRouter,
    monkeypatch: pytest.MonkeyPatch,
    tool_format: str,
    text: str,
    content: str,
    arguments: str,
) -> None:
    api = await start_router(fake_scheduler(answer_text(text), max_model_len=4096), tool_call_parser=tool_format)
    stub: inference_pb2_grpc.InferenceServiceAsyncStub = inference_pb2_grpc.InferenceServiceStub(api.channel)
    user = inference_pb2.ChatMessage(role="user", content="Hello")
    request = inference_pb2.ChatRequest(model=MODEL, messages=[user], tools=[inference_pb2.Tool(name="f")])

    def longest(deltas: list[inference_pb2.Delta]) -> int:
        calls = [len(call.arguments) for delta in deltas for call in delta.tool_calls]
        return max([len(delta.text) for delta in deltas] + calls)

    whole = [response.delta async for response in stub.Chat(request) if response.HasField("delta")]
    assert longest(whole) > 900
    monkeypatch.setattr(converters, "MAX_CHARS_OF_DELTA", 100)
    deltas = [response.delta async for response in stub.Chat(request) if response.HasField("delta")]
    assert longest(deltas) <= 100
    assert "".join(delta.text for delta in deltas) == content
    calls = [call for delta in deltas for call in delta.tool_calls]
    assert "".join(call.arguments for call in calls) == arguments
    assert [call.name for call in calls if call.name] == ["f"] * bool(arguments)
    assert len([call for call in calls if call.id]) == bool(arguments)
    assert [token for delta in deltas for token in delta.token_ids] == [
        token for delta in whole for token in delta.token_ids
    ]
    assert [bool(delta.finish_reason) for delta in deltas] == [False] * (len(deltas) - 1) + [True]


async def test_an_answer_that_is_not_read_counts_until_it_is(
    start_router: StartRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the unread answers have reached their limit, further large ones are refused. Small ones are not."""
    monkeypatch.setattr(unread_answers, "SMALL_BYTES", 1000)
    api = await start_router(fake_scheduler())
    unread = api.router.calls.unread
    stub: inference_pb2_grpc.InferenceServiceAsyncStub = inference_pb2_grpc.InferenceServiceStub(api.channel)
    request = inference_pb2.TokenizeRequest(model=MODEL, text=" " * 16_000, return_token_strs=True)
    size = (await stub.Tokenize(request)).ByteSize()
    assert size > 66_000, "more than HTTP/2 sends to a client that reads nothing"
    await until(lambda: unread.num_bytes == 0)
    monkeypatch.setattr(unread_answers, "MAX_HELD_BYTES", int(size * 1.5))
    reads = asyncio.Event()
    body = request.SerializeToString()
    reading = asyncio.create_task(
        http2.request(
            api.address,
            b"POST",
            b"/quire.inference.v1.InferenceService/Tokenize",
            ((b"content-type", b"application/grpc"), (b"te", b"trailers")),
            b"\0" + len(body).to_bytes(4, "big") + body,
            may_send_more=reads,
        )
    )
    await until(lambda: unread.num_bytes == size)
    with pytest.raises(grpc.aio.AioRpcError, match="have not read their answers") as refused:
        await stub.Tokenize(request)
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (await stub.Tokenize(inference_pb2.TokenizeRequest(model=MODEL, text="Hello"))).token_ids
    reads.set()
    assert len(await reading) == size + 5
    await until(lambda: unread.num_bytes == 0)
    assert len((await stub.Tokenize(request)).token_ids) == 16_000


async def test_long_answers_take_turns(start_router: StartRouter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two long answers that are written at once: a piece of each in turn, and others' work between any two pieces."""
    made: list[str] = []
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def write(_: Calls, __: object, message: str) -> None:
        made.append(f"{message}{turns}")

    def messages(name: str) -> Any:
        for _ in range(5):
            yield name

    api = await start_router(fake_scheduler())
    monkeypatch.setattr(Calls, "write", write)
    calls = Calls((), api.router.metrics)
    counting = asyncio.create_task(count_turns())
    await asyncio.gather(calls.write_each(None, messages("a")), calls.write_each(None, messages("b")))
    counting.cancel()
    assert "".join(name[0] for name in made) == "ab" * 5
    assert len({name[1:] for name in made}) == 10
