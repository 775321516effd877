"""What quire.inference.v1 takes and tells besides the essentials: it is what HTTP takes and tells."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import grpc
import pytest

from quire import AsyncClient, Client, QuireError
from quire.client import Tool
from quire.inference.v1 import inference_pb2, sampling_pb2
from tests.integration.router.conftest import (
    GREETING,
    MODEL,
    RefusedError,
    StartRouter,
    answer_text,
    error_reply,
    fake_scheduler,
)
from tests.integration.router.fake_scheduler import unpack
from tests.integration.router.small_tokenizers import EOS_TOKEN_ID, byte_fallback, byte_level
from tests.integration.router.test_embeddings import embedding_scheduler, expected
from tests.integration.router.test_sharing import started, taken
from tests.integration.router.test_typed_api import collect, stub_of

TEMPLATE = (
    "{{ extra }}{{ reasoning_effort }}{% for document in documents or [] %}({{ document.text }}){% endfor %}"
    "{% for message in messages %}[{{ message.name }}:{{ message.content }}]{% endfor %}"
    "{% if add_generation_prompt %}>{% endif %}"
)
MESSAGES = [{"role": "user", "content": "Hi", "name": "me"}, {"role": "assistant", "content": "So"}]


def chat_messages() -> list[inference_pb2.ChatMessage]:
    return [inference_pb2.ChatMessage(**message) for message in MESSAGES]  # type: ignore[arg-type]


async def test_an_answer_tells_what_ended_it(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler(answer_text("one, two, three")))
    by_string = inference_pb2.GenerationOptions(stop_strings=["x", ", th"])
    by_token = inference_pb2.GenerationOptions(stop=sampling_pb2.StopConditions(stop_token_ids=[EOS_TOKEN_ID]))
    for options, field, told, text, rest in (
        (by_string, "stop_string", ", th", "one, two", ", th"),
        (by_token, "stop_token_id", EOS_TOKEN_ID, "one, two, three", "</s>"),
    ):
        options.skip_special_tokens = False
        for includes, whole in itertools.product((False, True), repeat=2):
            options.include_stop_str_in_output = includes
            request = inference_pb2.GenerateRequest(text="Once", options=options, whole=whole)
            deltas, _ = await collect(stub_of(api).Generate(request))
            assert [delta.WhichOneof("stop_reason") for delta in deltas] == [None] * (len(deltas) - 1) + [field]
            assert getattr(deltas[-1], field) == told
            assert "".join(delta.text for delta in deltas) == text + (rest if includes else "")
    by_string.include_stop_str_in_output = False
    deltas, _ = await collect(stub_of(api).Chat(inference_pb2.ChatRequest(messages=chat_messages(), options=by_string)))
    assert deltas[-1].stop_string == ", th"
    deltas, _ = await collect(stub_of(api).Generate(inference_pb2.GenerateRequest(text="Once")))
    assert deltas[-1].WhichOneof("stop_reason") is None


@pytest.mark.parametrize("with_ids", [False, True])
@pytest.mark.parametrize(
    ("side", "count", "kept"),
    [("UNSPECIFIED", 3, slice(-3, None)), ("LEFT", 3, slice(-3, None)), ("RIGHT", 3, slice(None, 3))],
)
async def test_a_prompt_is_cut_and_told_as_it_was_left(
    start_router: StartRouter, side: str, count: int, kept: slice, *, with_ids: bool
) -> None:
    scheduler = fake_scheduler()
    api = await start_router(scheduler)
    text = "one, two, three " * 100
    ids = byte_level().encode(text).ids
    options = inference_pb2.GenerationOptions(
        truncate_prompt_tokens=count,
        truncation_side=f"TRUNCATION_SIDE_{side}",  # type: ignore[arg-type]
        return_prompt_token_ids=True,
    )
    prompt: dict[str, Any] = {"token_ids": {"ids": ids}} if with_ids else {"text": text}
    _, final = await collect(stub_of(api).Generate(inference_pb2.GenerateRequest(options=options, **prompt)))

    assert final.prompt_token_ids == ids[kept]
    assert unpack(scheduler.submits[0].prompt_token_ids) == ids[kept]


async def test_a_chat_is_cut_to_leave_room_for_the_answer(start_router: StartRouter) -> None:
    scheduler = fake_scheduler()
    api = await start_router(scheduler)
    options = inference_pb2.GenerationOptions(
        stop=sampling_pb2.StopConditions(max_tokens=56), truncate_prompt_tokens=-1, return_prompt_token_ids=True
    )
    message = inference_pb2.ChatMessage(role="user", content="one, two, three " * 100)
    _, final = await collect(stub_of(api).Chat(inference_pb2.ChatRequest(messages=[message], options=options)))
    assert len(final.prompt_token_ids) == 200
    assert unpack(scheduler.submits[0].prompt_token_ids) == final.prompt_token_ids


async def test_special_tokens_are_added_or_not(start_router: StartRouter) -> None:
    scheduler = fake_scheduler(tokenizer=byte_fallback())
    api = await start_router(scheduler)
    for adds in (None, True, False):
        options = inference_pb2.GenerationOptions(add_special_tokens=adds)
        await collect(stub_of(api).Generate(inference_pb2.GenerateRequest(text="Once", options=options)))
        await collect(stub_of(api).Chat(inference_pb2.ChatRequest(messages=chat_messages(), options=options)))
    generated, chatted = ([unpack(submit.prompt_token_ids) for submit in scheduler.submits[i::2]] for i in (0, 1))
    with_special = byte_fallback().encode("Once").ids
    assert generated == [with_special, with_special, byte_fallback().encode("Once", add_special_tokens=False).ids]
    assert chatted[0] == chatted[2] == chatted[1][1:]
    assert with_special[0] == chatted[1][0]


async def test_a_key_given_brings_different_prompts_together(start_router: StartRouter) -> None:
    api, schedulers = await started(start_router)
    async with AsyncClient(api.address) as client:
        for number in range(8):
            await client.generate(f"{number} and so on", prompt_cache_key="mine", max_tokens=1)
    assert sorted(taken(schedulers)) == [0, 0, 0, 8]


async def test_prompts_log_probabilities_have_ranks(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler())
    async with AsyncClient(api.address) as client:
        result = await client.generate("Grüße", prompt_logprobs=2, logprobs=1, return_prompt_token_ids=True)
    choice = result.choices[0]
    assert tuple(entry.token_id for entry in choice.prompt_logprobs) == result.prompt_token_ids[1:]
    assert all(entry.rank == entry.token_id for entry in choice.prompt_logprobs)
    assert all(entry.rank is None for entry in choice.logprobs)


@pytest.mark.parametrize(
    "template",
    [
        {},
        {"add_generation_prompt": False},
        {"continue_final_message": True},
        {"chat_template_kwargs": {"extra": "e", "reasoning_effort": "mine"}, "reasoning_effort": "high"},
        {"documents": [{"title": "t", "text": "d"}, {"text": "e"}], "reasoning_effort": "none"},
        {"chat_template": "{{ messages[0].content }}!"},
    ],
    ids=lambda template: "-".join(template) or "nothing",
)
async def test_prompts_of_conversations_are_those_of_http(start_router: StartRouter, template: dict[str, Any]) -> None:
    scheduler = fake_scheduler(chat_template=TEMPLATE)
    api = await start_router(scheduler)
    over_http = (await api.post("Tokenize", {"messages": MESSAGES, **template})).json["tokens"]
    text = byte_level().decode(over_http, skip_special_tokens=False)
    assert text.endswith(("[me:Hi][:So]>", "[me:Hi][:So]", "So", "Hi!"))

    def ask_in_thread() -> None:
        with Client(api.address) as client:
            assert client.tokenize(MESSAGES, **template) == over_http
            client.chat(MESSAGES, max_tokens=1, **template)

    await asyncio.to_thread(ask_in_thread)
    async with AsyncClient(api.address) as client:
        assert await client.tokenize(MESSAGES, **template) == over_http
        result = await client.chat(MESSAGES, max_tokens=1, return_prompt_token_ids=True, **template)
    assert list(result.prompt_token_ids) == over_http
    assert [unpack(submit.prompt_token_ids) for submit in scheduler.submits] == [over_http] * 2


async def test_tools_are_in_the_tokens_of_a_conversation(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler())
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}}
    tool = Tool("get_weather", "The weather in a city.", parameters)
    function = {"name": tool.name, "description": tool.description, "parameters": parameters}
    tools = [{"type": "function", "function": function}]
    messages = [{"role": "user", "content": "Hi"}]
    for choice in ("auto", "none"):
        body = {"messages": messages, "tools": tools, "tool_choice": choice}
        async with AsyncClient(api.address) as client:
            tokens = await client.tokenize(messages, tools=[tool], tool_choice=choice)
            plain = await client.tokenize(messages)
        assert (await api.post("Tokenize", body)).json["tokens"] == tokens
        assert (tokens == plain) == (choice == "none")


async def test_tokens_have_names_and_texts_of_their_own(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler())
    stub = stub_of(api)
    over_http = (await api.post("Tokenize", {"prompt": "Grüße 👋🏽", "return_token_strs": True})).json
    tokens = await stub.Tokenize(inference_pb2.TokenizeRequest(text="Grüße 👋🏽", return_token_strs=True))
    assert (tokens.token_ids, tokens.token_strs) == (over_http["tokens"], over_http["token_strs"])
    assert not (await stub.Tokenize(inference_pb2.TokenizeRequest(text="Grüße 👋🏽"))).token_strs

    async with AsyncClient(api.address) as client:
        texts = await client.token_texts(tokens.token_ids)
        with pytest.raises(QuireError) as caught:
            await client.token_texts([10**6])
    assert texts == [byte_level().decode([token_id], skip_special_tokens=False) for token_id in tokens.token_ids]
    assert "Grü�" in texts
    assert caught.value.param == "token_ids[0]"


async def test_models_tell_what_they_are_and_do(start_router: StartRouter) -> None:
    scheduler = fake_scheduler()
    scheduler.model.embedding.size = 6
    api = await start_router(scheduler)
    fingerprint = (await api.complete()).json["system_fingerprint"]
    async with AsyncClient(api.address) as client:
        models = await client.models()
    assert [model.name for model in models] == [MODEL, f"{MODEL}-alias"]
    for model in models:
        assert (model.root, model.tasks, model.fingerprint) == (MODEL, ("generate", "embed"), fingerprint)


async def test_scores_are_those_of_http(start_router: StartRouter) -> None:
    api = await start_router(embedding_scheduler())
    texts = ["Hello", "Köln", "你好"]

    def in_thread(*texts: Any, **options: Any) -> Any:
        with Client(api.address) as client:
            return client.score(*texts, **options)

    for first, second in (("Hello", texts), (texts, texts[::-1]), (["Hello"], "Köln")):
        reply = (await api.post("CreateScore", {"text_1": first, "text_2": second})).json
        async with AsyncClient(api.address) as client:
            scores = await client.score(first, second)
        assert scores == await asyncio.to_thread(in_thread, first, second)
        assert scores.scores == pytest.approx([entry["score"] for entry in reply["data"]], abs=1e-6)
        assert scores.usage.prompt_tokens == reply["usage"]["prompt_tokens"]
    async with AsyncClient(api.address) as client:
        with pytest.raises(QuireError, match="text_1") as caught:
            await client.score(["a", "b"], ["a", "b", "c"])
        assert caught.value.param == "text_1"
        with pytest.raises(QuireError) as caught:
            await client.score("a", [])
        assert caught.value.param == "text_2"
        cut = await client.score("Hello", "one, two", truncate_prompt_tokens=1)
    assert cut.usage.prompt_tokens == 2


async def test_inputs_are_cut_and_told_as_they_were_left(start_router: StartRouter) -> None:
    api = await start_router(embedding_scheduler())
    ids = byte_level().encode("one, two, three").ids
    long = "one, two, three " * 100
    async with AsyncClient(api.address) as client:
        cut = await client.embed(["Hello", "one, two, three"], truncate_prompt_tokens=2, return_prompt_token_ids=True)
        widest = await client.embed([long], truncate_prompt_tokens=-1, return_prompt_token_ids=True)
        plain = await client.embed(["Hello"])
    assert cut.prompt_token_ids == (tuple(byte_level().encode("Hello").ids[:2]), tuple(ids[:2]))
    assert list(cut.vectors[1]) == expected(byte_level().decode(ids[:2]))
    assert len(widest.prompt_token_ids[0]) == 256
    assert plain.prompt_token_ids == ()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"template": {"chat_template_kwargs": "[1]"}}, "template.chat_template_kwargs"),
        ({"template": {"chat_template_kwargs": "[" * 5000}}, "template.chat_template_kwargs"),
        ({"template": {"documents": ["{}", "x"]}}, "template.documents[1]"),
        ({"template": {"documents": ["{}"] * 1025}}, "template.documents"),
        ({"template": {"reasoning_effort": "hard"}}, "template.reasoning_effort"),
        (
            {"template": {"add_generation_prompt": True, "continue_final_message": True}},
            "template.continue_final_message",
        ),
        ({"tools": [{"name": "a b"}]}, "tools[0].name"),
        ({"tool_choice": {"name": "f"}}, "tool_choice"),
    ],
)
async def test_bad_fields_of_chats_are_named(start_router: StartRouter, fields: Any, param: str) -> None:
    api = await start_router(fake_scheduler())
    stub = stub_of(api)
    message = inference_pb2.ChatMessage(role="user", content="x")
    with pytest.raises(RefusedError) as chatted:
        await collect(stub.Chat(inference_pb2.ChatRequest(messages=[message], **fields)))
    chat = inference_pb2.ChatMessages(messages=[message], **fields)
    with pytest.raises(grpc.aio.AioRpcError) as tokenized:
        await stub.Tokenize(inference_pb2.TokenizeRequest(chat=chat))
    for refused, path in ((chatted.value, param), (error_reply(tokenized.value), f"chat.{param}")):
        assert refused.status is grpc.StatusCode.INVALID_ARGUMENT
        assert refused.error["param"] == path


@pytest.mark.parametrize("given", [0, -2])
async def test_nothing_left_of_a_prompt_is_refused(start_router: StartRouter, given: int) -> None:
    api = await start_router(fake_scheduler())
    async with AsyncClient(api.address) as client:
        with pytest.raises(QuireError) as caught:
            await client.generate("x", truncate_prompt_tokens=given)
    assert caught.value.param == "options.truncate_prompt_tokens"


async def test_options_for_what_is_not_there_are_refused_by_the_client(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler(answer_text(GREETING)))
    async with AsyncClient(api.address) as client:
        with pytest.raises(TypeError, match="'tools' is for conversations only"):
            await client.tokenize("x", tools=[])
        with pytest.raises(ValueError, match="use left or right"):
            await client.generate("x", truncation_side="middle")
        with pytest.raises(TypeError, match="'dimensions'"):
            await client.score("x", "y", dimensions=3)  # type: ignore[call-arg]
