"""Anthropic's, Ollama's and OpenAI's newer API over a real router: what they have in common with chat completions, and
errors in each one's shape."""

from __future__ import annotations

import json
from typing import Any

import grpc
import jsonschema
import pytest
from google.api.httpbody_pb2 import HttpBody

from deploy.envoy.routes import http_annotations
from quire.anthropic.v1 import anthropic_pb2_grpc
from quire.inference.v1 import sampling_pb2
from quire.ollama.v1 import ollama_pb2, ollama_pb2_grpc
from quire.openai.v1 import openai_pb2
from quire.scheduler.v1 import scheduler_pb2
from tests.integration.router.conftest import (
    GREETING,
    HTTP_STATUS,
    MAX_MODEL_LEN,
    MODEL,
    Api,
    RefusedError,
    Reply,
    StartRouter,
    answer_text,
    checked,
    fake_scheduler,
)
from tests.integration.router.fake_scheduler import Answer, unpack
from tests.integration.router.small_tokenizers import CHAT_TEMPLATE, byte_level

USER = {"role": "user", "content": "Hello"}
MESSAGE = {"model": MODEL, "max_tokens": 100, "messages": [USER]}
CHAT = {"model": MODEL, "messages": [USER], "stream": False}
RESPONSE = {"model": MODEL, "input": "Hello"}


def service_of(method: str) -> str:
    services = ("anthropic.v1.AnthropicService", "ollama.v1.OllamaService", "openai.v1.OpenAIService")
    return next(service for service in services if f"quire.{service}.{method}" in http_annotations())


async def post(api: Api, method: str, body: Any, *metadata: tuple[str, str]) -> list[bytes]:
    """The answer's messages. `method`: CreateMessage and the like, of whichever service has it."""
    stubs: dict[str, Any] = {
        "anthropic.v1.AnthropicService": anthropic_pb2_grpc.AnthropicServiceStub(api.channel),
        "ollama.v1.OllamaService": ollama_pb2_grpc.OllamaServiceStub(api.channel),
        "openai.v1.OpenAIService": api.stub,
    }
    service = service_of(method)
    call = getattr(stubs[service], method)(HttpBody(data=json.dumps(body).encode()), metadata=metadata)
    replies = [await call] if isinstance(call, grpc.aio.UnaryUnaryCall) else [reply async for reply in call]
    answer = Reply(replies[0].content_type, [reply.data for reply in replies])
    return checked(answer, method, service=service).messages


async def error_of(api: Api, method: str, body: Any, *metadata: tuple[str, str]) -> tuple[grpc.StatusCode, Any]:
    """The call's status, and the body of its error."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await post(api, method, body, *metadata)
    status = caught.value.code()
    body = str(dict(caught.value.trailing_metadata() or ())["quire-error"])
    checked(Reply("application/json", [body.encode()]), method, HTTP_STATUS[status], service_of(method))
    return status, json.loads(body)


async def test_every_api_answers_the_same_conversation_alike(start_router: StartRouter) -> None:
    scheduler = fake_scheduler()
    api = await start_router(scheduler)
    await api.chat()
    (message,) = await post(api, "CreateMessage", MESSAGE)
    (chat,) = await post(api, "Chat", CHAT)
    (generated,) = await post(api, "Generate", {"model": MODEL, "prompt": "Hello", "stream": False})
    (response,) = await post(api, "CreateResponse", RESPONSE)
    assert json.loads(message)["content"][0]["text"] == GREETING
    assert json.loads(chat)["message"]["content"] == GREETING
    assert json.loads(generated)["response"] == GREETING
    assert json.loads(response)["output"][0]["content"][0]["text"] == GREETING
    assert len({tuple(unpack(submit.prompt_token_ids)) for submit in scheduler.submits}) == 1
    usage = json.loads(message)["usage"]
    assert (usage["cache_read_input_tokens"], usage["input_tokens"]) == (4, json.loads(chat)["prompt_eval_count"] - 4)


async def test_an_answer_that_the_context_ended_says_so(start_router: StartRouter) -> None:
    answer = Answer([5] * MAX_MODEL_LEN, reason=sampling_pb2.FINISH_REASON_LENGTH, tokens_per_frame=100)
    api = await start_router(fake_scheduler(lambda submit, choice: answer))
    for max_tokens, reason in ((MAX_MODEL_LEN, "model_context_window_exceeded"), (3, "max_tokens")):
        body = MESSAGE | {"max_tokens": max_tokens}
        assert json.loads((await post(api, "CreateMessage", body))[0])["stop_reason"] == reason
        events = b"".join(await post(api, "CreateMessage", body | {"stream": True}))
        assert f'"stop_reason":"{reason}"'.encode() in events


async def test_the_stop_sequence_that_was_found_is_named(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler(answer_text("one two three")))
    body = MESSAGE | {"stop_sequences": ["three", "wo t"]}
    (reply,) = await post(api, "CreateMessage", body)
    message = json.loads(reply)
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "wo t")
    assert message["content"][0]["text"] == "one t"
    events = b"".join(await post(api, "CreateMessage", body | {"stream": True}))
    assert b'"stop_sequence":"wo t"' in events
    (reply,) = await post(api, "CreateMessage", MESSAGE | {"stop_sequences": ["four"]})
    assert json.loads(reply)["stop_sequence"] is None


THINKING: list[dict[str, Any]] = [
    {"type": "enabled", "budget_tokens": 31_999},
    {"type": "enabled", "budget_tokens": 1},
    {"type": "enabled"},
    {"type": "adaptive", "display": "omitted"},
    {"type": "disabled"},
]


@pytest.mark.parametrize("thinking", THINKING)
async def test_thinking_changes_nothing_where_the_model_does_not_think(
    start_router: StartRouter, thinking: dict[str, Any]
) -> None:
    """Claude Code sends it to every model."""
    scheduler = fake_scheduler()
    api = await start_router(scheduler)
    for extra in ({}, {"thinking": thinking}):
        (message,) = await post(api, "CreateMessage", MESSAGE | extra)
        assert [block["text"] for block in json.loads(message)["content"]] == [GREETING]
    first, second = scheduler.submits
    assert (first.prompt_token_ids, first.constraints) == (second.prompt_token_ids, second.constraints)


async def test_a_raw_prompt_has_no_template_around_it(start_router: StartRouter) -> None:
    scheduler = fake_scheduler()
    api = await start_router(scheduler)
    raw = {"model": MODEL, "prompt": "Once upon", "raw": True}
    data = b"".join(await post(api, "Generate", raw))
    assert unpack(scheduler.submits[0].prompt_token_ids) == byte_level().encode("Once upon").ids
    assert "".join(json.loads(line)["response"] for line in data.splitlines()) == GREETING
    _, error = await error_of(api, "Generate", raw | {"system": "Be brief."})
    assert error == {"error": "'system' is not supported by this server."}


async def test_generate_without_a_template_is_raw(start_router: StartRouter) -> None:
    scheduler = fake_scheduler(without_chat_template=True)
    api = await start_router(scheduler)
    await post(api, "Generate", {"model": MODEL, "prompt": "Once upon"})
    assert unpack(scheduler.submits[0].prompt_token_ids) == byte_level().encode("Once upon").ids


async def test_ollama_s_logprobs(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler())
    (whole,) = await post(api, "Chat", CHAT | {"logprobs": True})
    entries = json.loads(whole)["logprobs"]
    assert "".join(entry["token"] for entry in entries).startswith("Hello")
    lines = b"".join(await post(api, "Chat", CHAT | {"logprobs": True, "stream": True})).splitlines()
    assert [entry for line in lines for entry in json.loads(line).get("logprobs", [])] == entries


async def test_unknown_fields_are_counted_by_method(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler())
    await post(api, "CreateMessage", MESSAGE | {"foo": 1})
    await post(api, "Chat", CHAT | {"foo": 1, "bar": 2})
    await post(api, "CreateResponse", RESPONSE | {"foo": 1})
    text = (await api.get("GetMetrics")).messages[0].decode()
    for method, count in (("messages", 1), ("ollama.chat", 2), ("responses", 1)):
        assert f'quire:ignored_fields_total{{method="{method}",router="{api.router.id}"}} {count}.0' in text


async def test_no_value_of_a_request_becomes_a_label(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler())

    async def ask(text: str) -> None:
        metadata = [(name, text) for name in ("x-request-id", "traceparent", "user-agent")]
        chat = CHAT | {"stream": False}
        await api.complete(model=MODEL, user=text, cache_salt=text, prompt=text)
        await post(api, "Chat", chat | {text: 1})
        for body in ({"model": text}, {"max_tokens": text}, {"stop": [text] * 10_000}):
            with pytest.raises(RefusedError):
                await api.post("CreateCompletion", {"model": MODEL, "prompt": "x", **body}, metadata)

    async def series() -> set[str]:
        lines = (await api.get("GetMetrics")).messages[0].decode().splitlines()
        return {line.rpartition(" ")[0] for line in lines if not line.startswith("#")}

    await ask("zebra")
    before = await series()
    for index in range(5):
        await ask(f"other{index}")
    assert await series() == before
    assert not [line for line in before if "zebra" in line]


async def test_errors_have_each_api_s_shape(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler())
    message = f"The model `none` does not exist. Served here: `{MODEL}`."
    missing = {"model": "none"}
    assert await error_of(api, "CreateMessage", MESSAGE | missing) == (
        grpc.StatusCode.NOT_FOUND, {"type": "error", "error": {"type": "not_found_error", "message": message}},
    )  # fmt: skip
    assert await error_of(api, "Chat", CHAT | missing) == (grpc.StatusCode.NOT_FOUND, {"error": message})
    status, error = await error_of(api, "CreateResponse", RESPONSE | missing)
    assert (status, error["error"]["code"]) == (grpc.StatusCode.NOT_FOUND, "model_not_found")
    # A message too long for a header is cut in each shape alike.
    _, error = await error_of(api, "Chat", CHAT | {"model": "m" * 10_000})
    assert error["error"].startswith("The model `mmm")
    _, error = await error_of(api, "Chat", CHAT | {"format": {"x" * 9_000: 1}, "think": "y" * 9_000})
    assert error["error"].startswith("Invalid value for 'think'")


async def test_a_prompt_that_does_not_fit_names_the_api_s_field(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler())
    _, error = await error_of(api, "CreateResponse", RESPONSE | {"max_output_tokens": 1000})
    assert error["error"]["param"] == "max_output_tokens"
    _, error = await error_of(api, "CreateResponse", RESPONSE | {"input": "x " * 1000})
    assert error["error"]["param"] == "input"
    _, error = await error_of(api, "Generate", {"model": MODEL, "prompt": "x " * 1000})
    assert "Please shorten 'prompt'" in error["error"]
    _, error = await error_of(api, "CreateMessage", MESSAGE | {"messages": [{"role": "user", "content": "x " * 1000}]})
    assert "Please shorten 'messages'" in error["error"]["message"]


async def test_answers_end_where_the_context_does(start_router: StartRouter) -> None:
    """Clients send one limit to models of every size."""
    scheduler = fake_scheduler()
    api = await start_router(scheduler)
    await post(api, "CreateMessage", MESSAGE | {"max_tokens": 32_000})
    options = {"options": {"num_predict": 100_000}}
    await post(api, "Chat", CHAT | options)
    await post(api, "Generate", {"model": MODEL, "prompt": "Hello"} | options)
    await post(api, "Generate", {"model": MODEL, "prompt": "Hello", "raw": True} | options)
    for submit in scheduler.submits:
        assert submit.stop.max_tokens == MAX_MODEL_LEN - len(unpack(submit.prompt_token_ids))


@pytest.mark.parametrize("length", [MAX_MODEL_LEN - 40, MAX_MODEL_LEN + 1, 100 * MAX_MODEL_LEN])
async def test_tokens_are_counted_whether_they_fit_or_not(start_router: StartRouter, length: int) -> None:
    """By its tokens a client learns how much it has to shorten."""
    api = await start_router(fake_scheduler())
    content = "x " * length
    body = {"model": MODEL, "messages": [{"role": "user", "content": content}]}
    rendered = f"<|im_start|>user\n{content}<|im_end|>\n<|im_start|>assistant\n"
    expected = len(byte_level().encode(rendered, add_special_tokens=False).ids)
    assert json.loads((await post(api, "CountTokens", body))[0]) == {"input_tokens": expected}
    assert (await api.post("Tokenize", body)).json["count"] == expected


async def test_an_error_in_a_stream_has_each_api_s_shape(start_router: StartRouter) -> None:
    def script(submit: scheduler_pb2.Submit, choice: scheduler_pb2.Choice) -> Answer:
        ids = byte_level().encode("Hello, world!").ids[:3]
        return Answer(ids, error=scheduler_pb2.Error(code=13, message="The worker failed."))

    api = await start_router(fake_scheduler(script))
    stream = {"stream": True}
    lasts = {
        method: b"".join(await post(api, method, body | stream)).decode().rstrip("\n").rpartition("\n")[2]
        for method, body in (("CreateMessage", MESSAGE), ("Chat", CHAT), ("CreateResponse", RESPONSE))
    }
    error = json.loads(lasts["CreateMessage"].removeprefix("data: "))
    assert (error["type"], error["error"]) == ("error", {"type": "api_error", "message": "The worker failed."})
    assert json.loads(lasts["Chat"]) == {"error": "The worker failed."}
    failed = json.loads(lasts["CreateResponse"].removeprefix("data: "))
    assert failed["type"] == "response.failed"
    assert failed["response"]["error"] == {"code": "server_error", "message": "The worker failed."}


async def test_keys_are_taken_as_anthropic_s_clients_send_them(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler(), api_key=("first", "second"))
    for metadata in ((), (("x-api-key", "wrong"),), (("x-api-key", ""),), (("authorization", "Bearer wrong"),)):
        for method, body in (("CreateMessage", MESSAGE), ("Chat", CHAT), ("CreateResponse", RESPONSE)):
            assert (await error_of(api, method, body, *metadata))[0] is grpc.StatusCode.UNAUTHENTICATED
    _, error = await error_of(api, "CreateMessage", MESSAGE)
    assert error["error"]["type"] == "authentication_error"
    await post(api, "CreateMessage", MESSAGE, ("x-api-key", "second"))
    await post(api, "CreateMessage", MESSAGE, ("authorization", "Bearer first"))
    # A bearer token is judged alone.
    both = (("authorization", "Bearer wrong"), ("x-api-key", "first"))
    assert (await error_of(api, "CreateMessage", MESSAGE, *both))[0] is grpc.StatusCode.UNAUTHENTICATED
    ollama = ollama_pb2_grpc.OllamaServiceStub(api.channel)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await ollama.ListModels(ollama_pb2.ListModelsRequest())
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_no_response_is_kept(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler())
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await api.stub.GetResponse(openai_pb2.GetResponseRequest(response_id="resp_1"))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    body = json.loads(dict(caught.value.trailing_metadata() or ())["quire-error"])
    assert body["error"]["param"] == "response_id"


async def test_responses_match_openai_s_published_schema(start_router: StartRouter, openai_document: Any) -> None:
    api = await start_router(fake_scheduler())
    schemas = {
        name: jsonschema.Draft202012Validator(
            {"$ref": f"#/components/schemas/{name}", "components": openai_document["components"]}
        )
        for name in ("Response", "ResponseStreamEvent")
    }
    for extra in ({}, {"max_output_tokens": 3}, {"top_logprobs": 2, "include": ["message.output_text.logprobs"]}):
        (reply,) = await post(api, "CreateResponse", RESPONSE | extra)
        assert [error.message for error in schemas["Response"].iter_errors(json.loads(reply))] == []
        data = b"".join(await post(api, "CreateResponse", RESPONSE | extra | {"stream": True})).decode()
        events = [json.loads(line[6:]) for line in data.splitlines() if line.startswith("data: ")]
        assert len(events) > 8
        for event in events:
            assert [error.message for error in schemas["ResponseStreamEvent"].iter_errors(event)] == [], event


TOOLS: dict[str, Any] = {
    "CreateChatCompletion": {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}},
    "CreateResponse": {"type": "function", "name": "add", "description": "Adds.", "parameters": {"type": "object"}},
    "CreateMessage": {"name": "add", "input_schema": {"type": "object"}},
    "Chat": {"type": "function", "function": {"name": "add"}},
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("method", TOOLS)
async def test_thoughts_texts_and_calls_are_as_documented(start_router: StartRouter, method: str, stream: bool) -> None:
    text = '<think>\nHm.\n</think>\n\nI add.\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    template = CHAT_TEMPLATE + "{# </think> <tool_call> {{ tools }} #}"
    api = await start_router(fake_scheduler(answer_text(text), chat_template=template, max_model_len=4096))
    bodies: dict[str, dict[str, Any]] = {"CreateResponse": RESPONSE, "CreateMessage": MESSAGE}
    body = bodies.get(method, {"model": MODEL, "messages": [USER]})
    # Whatever is answered is held against the documents by `post`.
    data = b"".join(await post(api, method, body | {"tools": [TOOLS[method]], "stream": stream}))
    assert {"CreateMessage": b"thinking", "Chat": b"thinking"}.get(method, b"reasoning") in data
    assert b'"add"' in data
    assert b"</think>" not in data
    assert b"<tool_call>" not in data


async def test_a_response_repeats_what_is_known_of_its_request(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler(answer_text("{}"), max_model_len=4096))
    tool = {**TOOLS["CreateResponse"], "surprise": 1}
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "add", "surprise": 1}]}
    schema = {"type": "json_schema", "name": "n", "description": "d", "schema": {"type": "object"}, "strict": True}
    for asked, repeated in (
        (schema | {"surprise": 1}, schema),
        ({"type": "text", "name": "n", "surprise": 1}, {"type": "text"}),
    ):
        body = {"tools": [tool], "tool_choice": allowed | {"surprise": 1}, "text": {"format": asked}}
        (reply,) = await post(api, "CreateResponse", RESPONSE | body)
        response = json.loads(reply)
        assert response["text"] == {"format": repeated}
        assert response["tools"] == [TOOLS["CreateResponse"] | {"strict": False}]
        assert response["tool_choice"] == allowed | {"tools": [{"type": "function", "name": "add"}]}
    named = {"type": "function", "name": "add"}
    (reply,) = await post(api, "CreateResponse", RESPONSE | {"tools": [tool], "tool_choice": named | {"surprise": 1}})
    assert json.loads(reply)["tool_choice"] == named
    _, error = await error_of(api, "CreateResponse", RESPONSE | {"safety_identifier": "x" * 65})
    assert error["error"]["param"] == "safety_identifier"


async def test_ollama_s_models_are_as_documented(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler())
    stub = ollama_pb2_grpc.OllamaServiceStub(api.channel)
    for method, request in (
        ("ListModels", ollama_pb2.ListModelsRequest()), ("ListRunningModels", ollama_pb2.ListRunningModelsRequest()),
        ("GetVersion", ollama_pb2.GetVersionRequest()), ("ShowModel", HttpBody(data=b'{"model": "test-model"}')),
    ):  # fmt: skip
        reply = await getattr(stub, method)(request)
        checked(Reply(reply.content_type, [reply.data]), method, service="ollama.v1.OllamaService")
    for body in (CHAT | {"messages": []}, CHAT | {"messages": [], "keep_alive": 0, "stream": True}):
        assert json.loads(b"".join(await post(api, "Chat", body)))["done_reason"] in ("load", "unload")


@pytest.mark.parametrize(
    "body",
    [
        {"input": "Hello"},
        {"input": [USER], "instructions": "Be brief.", "text": {"format": {"type": "json_object"}}},
        {"input": "Hello", "reasoning": {"effort": "low"}},
    ],
)
async def test_input_tokens_are_counted_as_they_are_used(start_router: StartRouter, body: dict[str, Any]) -> None:
    scheduler = fake_scheduler()
    api = await start_router(scheduler)
    await api.chat()
    (reply,) = await post(api, "CreateResponse", {"model": MODEL} | body)
    (count,) = await post(api, "CountInputTokens", {"model": MODEL} | body)
    expected = {"object": "response.input_tokens", "input_tokens": json.loads(reply)["usage"]["input_tokens"]}
    assert json.loads(count) == expected
    _, error = await error_of(api, "CountInputTokens", {"model": MODEL, "previous_response_id": "r"} | body)
    assert error["error"]["param"] == "previous_response_id"


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_responses_drop_the_oldest_turns_of_a_conversation_that_is_too_long(
    start_router: StartRouter, is_streamed: bool
) -> None:
    scheduler = fake_scheduler()
    api = await start_router(scheduler)
    items = [
        {"role": "user", "content": "Oldest " * 20},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a": "dropped"}'},
        {"role": "user", "content": "Older " * 20},
        {"type": "function_call_output", "call_id": "c", "output": "Result"},
        {"role": "assistant", "content": "Of course."},
        {"role": "user", "content": "Newest"},
    ]
    body = RESPONSE | {
        "instructions": "Be brief.", "input": items, "max_output_tokens": 120, "truncation": "auto",
    }  # fmt: skip
    data = b"".join(await post(api, "CreateResponse", body | {"stream": is_streamed}))
    assert b'"truncation":"auto"' in data
    (submit,) = scheduler.submits
    prompt_ids = unpack(submit.prompt_token_ids)
    prompt = byte_level().decode(prompt_ids, skip_special_tokens=False)
    assert len(prompt_ids) + 120 <= MAX_MODEL_LEN
    assert "Be brief." in prompt
    assert "Newest" in prompt
    assert not any(dropped in prompt for dropped in ("Oldest", "dropped", "Result"))

    status, error = await error_of(api, "CreateResponse", body | {"truncation": "disabled"})
    assert (status, error["error"]["code"]) == (grpc.StatusCode.INVALID_ARGUMENT, "context_length_exceeded")

    counted = {name: value for name, value in body.items() if name != "max_output_tokens"}
    (count,) = await post(api, "CountInputTokens", counted | {"input": [*items[:1] * 10, *items[-2:]]})
    assert json.loads(count)["input_tokens"] < MAX_MODEL_LEN
    (count,) = await post(api, "CountInputTokens", counted | {"input": items[:1] * 10, "truncation": "disabled"})
    assert json.loads(count)["input_tokens"] > MAX_MODEL_LEN
