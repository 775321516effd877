"""vLLM's paths beside OpenAI's: several conversations in one request, /invocations, /tokenizer_info and /ping."""

from __future__ import annotations

import json
from typing import Any

import grpc
import pytest

from quire.documents.v1 import documents_pb2, documents_pb2_grpc
from quire.inference.v1 import sampling_pb2
from quire.openai.v1 import openai_pb2
from quire.scheduler.v1 import scheduler_pb2
from tests.integration.router.conftest import GREETING, MODEL, RefusedError, StartRouter, answer_text, fake_scheduler
from tests.integration.router.fake_scheduler import Answer, unpack
from tests.integration.router.small_tokenizers import CHAT_TEMPLATE, EOS_TOKEN_ID, byte_level

INVALID = grpc.StatusCode.INVALID_ARGUMENT
BATCH = "CreateChatCompletionBatch"
THINKS = CHAT_TEMPLATE + "{% if false %}<think></think>{% endif %}"


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def repeats(submit: scheduler_pb2.Submit, choice: scheduler_pb2.Choice) -> Answer:
    """As many tokens as the prompt has, modulo 7."""
    number = len(unpack(submit.prompt_token_ids)) % 7
    ids = byte_level().encode("x" * number + "!", add_special_tokens=False).ids
    return Answer([*ids, EOS_TOKEN_ID], reason=sampling_pb2.FINISH_REASON_STOP)


CONVERSATIONS = [[user("a")], [user("Hello"), {"role": "assistant", "content": "Hi"}, user("b c d")], [user("zz")]]


async def test_each_conversation_of_a_batch_has_its_own_answer(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler(repeats))
    options = {"logprobs": True, "return_token_ids": True, "max_completion_tokens": 20}
    batch = (await api.post(BATCH, {"model": MODEL, "messages": CONVERSATIONS} | options)).json
    alone = [(await api.chat(messages=messages, **options)).json for messages in CONVERSATIONS]
    assert [choice["index"] for choice in batch["choices"]] == [0, 1, 2]
    for choice, single in zip(batch["choices"], alone, strict=True):
        assert choice == single["choices"][0] | {"index": choice["index"]}
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert batch["usage"][name] == sum(single["usage"][name] for single in alone)
    assert "prompt_token_ids" not in batch


async def test_a_batch_tells_reasoning_apart(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler(answer_text("<think>Hm.</think>So."), chat_template=THINKS))
    batch = (await api.post(BATCH, {"messages": [[user("a")], [user("b")]]})).json
    for choice in batch["choices"]:
        assert (choice["message"]["reasoning_content"], choice["message"]["content"]) == ("Hm.", "So.")
    assert batch["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [user("a")]}, "messages[0]"),
        ({"messages": [[user("a")], []]}, "messages[1]"),
        ({"messages": [[user("a")], [user("b"), {"role": "user"}]]}, "messages[1][1].content"),
        ({"messages": [[user("a")], [{"role": "tool", "content": "x"}]]}, "messages[1][0].tool_call_id"),
        ({"messages": [[user("a")], [user("x" * 2000)]]}, "messages[1]"),
        ({"messages": [[user("a")]], "stream": True}, "stream"),
        ({"messages": [[user("a")]], "n": 2}, "n"),
        ({"messages": [[user("a")]], "tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"messages": [[user("a")]], "prompt_logprobs": 1}, "prompt_logprobs"),
        ({"messages": [[user("a")]], "temperature": 9}, "temperature"),
    ],
)
async def test_what_is_wrong_with_a_batch_is_named(start_router: StartRouter, body: dict[str, Any], param: str) -> None:
    api = await start_router(fake_scheduler())
    refusal = await api.refused(BATCH, {"model": MODEL} | body)
    assert (refusal.status, refusal.error["param"]) == (INVALID, param)


async def test_a_conversation_that_fails_ends_the_others(start_router: StartRouter) -> None:
    def script(submit: scheduler_pb2.Submit, choice: scheduler_pb2.Choice) -> Answer:
        if len(unpack(submit.prompt_token_ids)) < 30:
            return Answer([5], pause_after=0)
        error = scheduler_pb2.Error(message="It broke.")
        return Answer([5], reason=sampling_pb2.FINISH_REASON_ERROR, error=error)

    scheduler = fake_scheduler(script)
    api = await start_router(scheduler)
    refusal = await api.refused(BATCH, {"model": MODEL, "messages": [[user("a")], [user("a " * 30)]]})
    assert "broke" in refusal.error["message"]
    await scheduler.wait_for(lambda: len(scheduler.aborted) == 1)


async def test_an_invocation_is_a_chat_or_a_completion(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler())
    chat = (await api.post("CreateInvocation", {"model": MODEL, "messages": [user("Hello")]})).json
    assert (chat["object"], chat["choices"][0]["message"]["content"]) == ("chat.completion", GREETING)
    streamed = await api.post("CreateInvocation", {"model": MODEL, "prompt": "Hello", "max_tokens": 99, "stream": True})
    assert "".join(chunk["choices"][0]["text"] for chunk in streamed.events) == GREETING


async def test_what_an_invocation_asks_for_must_be_told(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler(), api_key=("secret",))
    key = (("authorization", "Bearer secret"),)
    refusal = await api.refused("CreateInvocation", {"model": MODEL}, key)
    assert refusal.status is INVALID
    assert "'messages', 'prompt', 'input'" in refusal.error["message"]
    refusal = await api.refused("CreateInvocation", b"{", key)
    assert "could not parse" in refusal.error["message"]
    refusal = await api.refused("CreateInvocation", {"messages": "x"}, key)
    assert refusal.error["param"] == "messages"
    refusal = await api.refused("CreateInvocation", {"messages": [user("x")]})
    assert refusal.status is grpc.StatusCode.UNAUTHENTICATED


async def test_the_tokenizer_s_configuration_is_told(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler(), api_key=("secret",))
    key = (("authorization", "Bearer secret"),)
    info = (await api.get("GetTokenizerInfo", metadata=key)).json
    assert (info["chat_template"], info["bos_token"]) == (CHAT_TEMPLATE, "<s>")
    assert isinstance(info["tokenizer_class"], str)
    again = await api.get("GetTokenizerInfo", openai_pb2.GetTokenizerInfoRequest(model=MODEL), metadata=key)
    assert again.json == info
    with pytest.raises(RefusedError) as caught:
        await api.get("GetTokenizerInfo", openai_pb2.GetTokenizerInfoRequest(model="other"), metadata=key)
    assert "`other` does not exist" in caught.value.error["message"]


async def test_a_ping_needs_no_key(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler(), api_key=("secret",))
    assert (await api.get("GetPing")).json == {"status": "ok"}


async def test_the_document_of_a_router_behind_a_prefix_names_it(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler(), root_path="/llm")
    stub: Any = documents_pb2_grpc.DocumentServiceStub(api.channel)
    described = json.loads((await stub.GetOpenApi(documents_pb2.GetOpenApiRequest())).data)
    assert described["servers"] == [{"url": "/llm"}]
