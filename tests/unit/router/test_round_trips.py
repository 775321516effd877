"""Whatever an API answers with can be sent back in, as clients do to go on: it is taken, and every kind of template
can write it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.router.apis.anthropic.body import MessagesBody
from services.router.apis.anthropic.writer import AnthropicWriter
from services.router.apis.ollama.chat import ChatBody
from services.router.apis.ollama.writer import OllamaWriter
from services.router.apis.openai.chat_completions import ChatCompletionRequest
from services.router.apis.openai.chat_writer import ChatCompletionWriter, ChatStyle
from services.router.apis.openai.json import AnswerHead
from services.router.apis.responses.body import ResponseBody
from services.router.apis.responses.response import ResponseObject
from services.router.apis.responses.writer import ResponseWriter
from services.router.chat.fitting import encode_plan
from services.router.chat.forms import TOOL_FORMS, FormChoice
from services.router.chat.message import EndReason, Message, MessageDelta, ToolCallDelta
from services.router.chat.plan import plan_chat
from services.router.chat.request import ChatRequest
from services.router.generation.usage import Usage
from services.router.model import ModelInfo, ServedModel
from services.router.parameters.sampling import SamplingParams
from services.router.text.threads import TextThreads
from services.router.text.tokenizer import Tokenizer
from tests.chat_templates.published import ours
from tests.integration.router.small_tokenizers import CHAT_TEMPLATE, byte_level, tokenizer_config

USAGE = Usage(10, 4, 0)
USER = {"role": "user", "content": "Hello"}
TEMPLATES = {
    "none": CHAT_TEMPLATE,
    "items": (
        "{% if tools %}{% endif %}{% for m in messages %}{{ m.role }}: {{ m.reasoning_content }}{{ m.content.strip() }}"
        "{% for call in m.tool_calls or [] %}{{ call.function.name }}"
        "{% for key, value in call.function.arguments.items() %}{{ key }}={{ value }}{% endfor %}"
        "{% endfor %}\n{% endfor %}<tool_call></think>"
    ),
    "text": (
        "{% if tools %}{% endif %}{% for m in messages %}{{ m.role + ': ' + m.content }}"
        "{% for call in m.tool_calls or [] %}{{ call.function.name + call.function.arguments }}{% endfor %}"
        "\n{% endfor %}<tool_call></think>"
    ),
    "channels": str(ours()["channels"]),
}
# What models write: objects, other JSON, what was cut, and nonsense.
ARGUMENTS = st.one_of(
    st.sampled_from(
        ["", "{}", "{", '{"city": "Kö', '{"city": "Köln"}', '{"a": [1, {"b"', "[1]", '"x"', "null", "oops"]
    ),
    st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=3), max_size=2).map(json.dumps),
)
CALLS = st.lists(st.tuples(st.sampled_from(["get_weather", "get_time"]), ARGUMENTS), max_size=3)
TEXTS = st.sampled_from(["", " ", "\n", "Köln.", "<tool_call>", '{"a": 1}'])


@pytest.fixture(scope="module")
def models() -> Iterator[dict[str, ServedModel]]:
    info = ModelInfo("m", (), 100_000, 512, frozenset({2}), SamplingParams(), "", 0, "", "")
    threads = TextThreads(1)
    tokenizer = byte_level().to_str().encode()
    yield {
        name: ServedModel(info, Tokenizer(tokenizer, json.dumps(tokenizer_config(template)).encode(), threads), 0)
        for name, template in TEMPLATES.items()
    }
    threads.close()


def chat(model: ServedModel, message: Message, shows_reasoning: bool) -> ChatRequest:
    writer = ChatCompletionWriter(AnswerHead.new("chatcmpl", model), ChatStyle(with_reasoning=shows_reasoning))
    answer = json.loads("".join(writer.whole([message], USAGE)))["choices"][0]["message"]
    results = [{"role": "tool", "tool_call_id": c["id"], "content": "Rain."} for c in answer.get("tool_calls", ())]
    body = ChatCompletionRequest.model_validate({"messages": [USER, answer, *results, USER]})
    body.check(1)
    return body.to_chat()


def response(model: ServedModel, message: Message, _: bool) -> ChatRequest:
    first = ResponseBody.model_validate({"input": "Hello"})
    writer = ResponseWriter(ResponseObject(first, first.to_chat().options.sampling, model))
    items = json.loads("".join(writer.whole([message], USAGE)))["output"]
    ids = [item["call_id"] for item in items if item["type"] == "function_call"]
    results = [{"type": "function_call_output", "call_id": call_id, "output": "Rain."} for call_id in ids]
    return ResponseBody.model_validate({"input": [USER, *items, *results, USER]}).to_chat()


def anthropic(_: ServedModel, message: Message, shows_reasoning: bool) -> ChatRequest:
    blocks = json.loads("".join(AnthropicWriter("m", shows_reasoning).whole([message], USAGE)))["content"]
    ids = [block["id"] for block in blocks if block["type"] == "tool_use"]
    results: list[Any] = [{"type": "tool_result", "tool_use_id": call_id, "content": "Rain."} for call_id in ids]
    turns = [USER, {"role": "assistant", "content": blocks}, {"role": "user", "content": results or "Hello"}]
    return MessagesBody.model_validate({"model": "m", "max_tokens": 5, "messages": turns}).to_chat()


def ollama(_: ServedModel, message: Message, __: bool) -> ChatRequest:
    answer = json.loads("".join(OllamaWriter("m", is_chat=True, vocabulary=None).whole([message], USAGE)))["message"]
    results = [{"role": "tool", "content": "Rain."} for _ in answer.get("tool_calls", ())]
    return ChatBody.model_validate({"model": "m", "messages": [USER, answer, *results, USER]}).to_chat("m")


APIS = {"chat": chat, "response": response, "anthropic": anthropic, "ollama": ollama}


@pytest.mark.parametrize("api", APIS)
@settings(deadline=None, max_examples=60)
@given(
    reasoning=TEXTS,
    content=TEXTS,
    calls=CALLS,
    reason=st.sampled_from(EndReason),
    shows_reasoning=st.booleans(),
    template=st.sampled_from([*TEMPLATES]),
    form=st.sampled_from([*TOOL_FORMS]),
)
def test_what_was_answered_can_be_sent_back(
    models: dict[str, ServedModel], api: str, reasoning: str, content: str, calls: list[tuple[str, str]],
    reason: EndReason, shows_reasoning: bool, template: str, form: str,
) -> None:  # fmt: skip
    message = Message()
    deltas = [ToolCallDelta(index, arguments, f"call{index:05}", name) for index, (name, arguments) in enumerate(calls)]
    message.add(MessageDelta(0, content, reasoning, deltas, end_reason=reason))
    model = models[template]

    async def encode() -> list[int]:
        request = APIS[api](model, message, shows_reasoning)
        said = next(entry for entry in request.messages if entry["role"] == "assistant")
        assert [call["function"]["name"] for call in said.get("tool_calls", ())] == [name for name, _ in calls]
        return await encode_plan(await plan_chat(request, model, FormChoice(form)), model)

    prompt = byte_level().decode(asyncio.run(encode()), skip_special_tokens=False)
    assert content.strip() in prompt
    assert all(name in prompt for name, _ in calls)


def test_a_call_with_arguments_that_were_cut_is_passed_on_as_it_was(models: dict[str, ServedModel]) -> None:
    message = Message()
    message.add(MessageDelta(0, tool_calls=[ToolCallDelta(0, '{"ci', "a", "f")], end_reason=EndReason.LENGTH))
    (call,) = chat(models["text"], message, True).messages[1]["tool_calls"]
    assert call["function"]["arguments"] == '{"ci'
