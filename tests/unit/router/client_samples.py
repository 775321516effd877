"""A value of every served field in client_tables that changes the converted request or the answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.unit.router.client_tables.anthropic import THOUGHTS


@dataclass(frozen=True)
class Sample:
    value: Any
    # Fields of the same object without which the value is invalid or has no effect. The field itself may be one of
    # them, with another value.
    beside: Mapping[str, Any] = field(default_factory=dict)
    # Whether the request is refused with the value.
    is_refused: bool = False


# The field has only one value, which is served. Another value is refused, with an error that names the field.
ONLY = Sample("telepathy", is_refused=True)

_CALL = {"name": "sub", "arguments": "{}"}
_TOOL_CALL = {"id": "d", "type": "function", "function": _CALL}
_SCHEMA = {"type": "object", "properties": {"a": {}}}
_FUNCTION = {"name": "sub", "description": "Subtracts.", "parameters": _SCHEMA}
_SUB = {"type": "function", "function": {"name": "sub"}}
_RESPONSE_TOOL = {"type": "function", "name": "sub"}
_JSON_SCHEMA = {"type": "json_schema", "schema": _SCHEMA}
_LONG = "long " * 200
_BYE = {"role": "user", "content": "Bye"}
_CLEARED = {"edits": [{"type": "clear_thinking_20251015"}]}
_THINKING = {"messages": THOUGHTS["messages"]}
_OLLAMA_CALL = {"function": {"name": "sub", "arguments": {}}}


def _values(**values: Any) -> dict[str, Sample]:
    return {name: value if isinstance(value, Sample) else Sample(value) for name, value in values.items()}


_OF_FUNCTION = _values(description="Adds.", name="sub", parameters=_SCHEMA)
_OF_CALL = _values(arguments='{"a":1}', name="sub")
_OF_TEXT = _values(text="y", type=ONLY)
_SAMPLING = _values(
    frequency_penalty=0.5, logit_bias={"5": 1}, max_tokens=5, model="other", n=2, presence_penalty=0.5, seed=1,
    stop="x", stream=True, stream_options=Sample({"include_usage": True}, {"stream": True}), temperature=0.5, top_p=0.5,
)  # fmt: skip
_OF_RESPONSE = _values(
    input="Bye", instructions="Be brief.", model="other", parallel_tool_calls=False, reasoning={"effort": "low"},
    text={"format": {"type": "json_object"}}, tool_choice=Sample("none", {"tools": [_RESPONSE_TOOL]}),
    tools=[_RESPONSE_TOOL], truncation="auto",
)  # fmt: skip
_OF_MESSAGES = _values(
    chat_template_kwargs={"x": 1},
    context_management=Sample(_CLEARED, _THINKING), messages=[_BYE], model="other", output_config={"effort": "low"},
    system="Be brief.", thinking={"type": "disabled"}, tool_choice={"type": "none"},
    tools=[{"name": "sub", "input_schema": {}}],
)  # fmt: skip
_OF_OLLAMA = _values(
    format="json", logprobs=True, model="other", options={"seed": 1}, stream=False, think=True,
    top_logprobs=Sample(2, {"logprobs": True}),
)  # fmt: skip

# By object and field, as in `client_fields.TABLE`.
SAMPLES: dict[str, dict[str, Sample]] = {
    "openai.chat": _SAMPLING | _values(
        logprobs=True, max_completion_tokens=5, messages=[_BYE], parallel_tool_calls=False, prompt_cache_key="k",
        reasoning_effort="low", response_format={"type": "json_object"}, tool_choice=Sample("none", {"tools": [_SUB]}),
        tools=[_SUB], top_logprobs=Sample(2, {"logprobs": True}),
        function_call=Sample("none", {"functions": [_FUNCTION]}), functions=[_FUNCTION],
    ),
    "openai.chat.stream_options": _values(include_usage=True),
    "openai.chat.message": _values(
        content="y", function_call=_CALL, name="Bob", refusal="No.", role="user", tool_call_id="c",
        tool_calls=[_TOOL_CALL],
    ),
    "openai.chat.message.text": _OF_TEXT,
    "openai.chat.message.refusal": _values(refusal="y", type=ONLY),
    "openai.chat.message.function_call": _OF_CALL,
    "openai.chat.tool_call": _values(function=_CALL, id="d", type=ONLY),
    "openai.chat.tool_call.function": _OF_CALL,
    "openai.chat.tool": _values(function=_FUNCTION, type=ONLY),
    "openai.chat.function": _OF_FUNCTION | _values(strict=True),
    "openai.chat.tool_choice": _values(function={"name": "sub"}, type=ONLY),
    "openai.chat.tool_choice.function": _values(name="sub"),
    "openai.chat.allowed_tool_choice": _values(allowed_tools={"mode": "required", "tools": [_SUB]}, type=ONLY),
    "openai.chat.allowed_tools": _values(mode="required", tools=[_SUB]),
    "openai.chat.functions": _OF_FUNCTION,
    "openai.chat.function_call": _values(name="sub"),
    "openai.chat.response_format": _values(
        json_schema=Sample({"name": "n", "schema": _SCHEMA}, {"type": "json_object"}), type="json_object"
    ),
    "openai.chat.response_format.json_schema": _values(schema=_SCHEMA),
    "openai.completions": _SAMPLING | _values(best_of=2, echo=Sample(True, {"logprobs": 1}), logprobs=1, prompt="y"),
    "openai.completions.stream_options": _values(include_usage=True),
    "openai.embeddings": _values(dimensions=4, encoding_format="base64", input="y", model="other"),
    "openai.responses": _OF_RESPONSE | _values(
        include=["message.output_text.logprobs"], max_output_tokens=5, metadata={"a": "b"}, prompt_cache_key="k",
        safety_identifier="u", stream=True, temperature=0.5, top_logprobs=2, top_p=0.5, user="u",
    ),
    "openai.responses.input_tokens": _OF_RESPONSE,
    "openai.responses.reasoning": _values(effort="low"),
    "openai.responses.text": _values(format={"type": "json_object"}),
    "openai.responses.text.format": _values(
        schema=Sample(_SCHEMA, {"type": "json_schema", "name": "n", "schema": {}}), type="json_object"
    ),
    "openai.responses.tool": _OF_FUNCTION | _values(strict=True, type=ONLY),
    "openai.responses.tool_choice": _values(name="sub", type=ONLY),
    "openai.responses.allowed_tools": _values(mode="required", tools=[_RESPONSE_TOOL], type=ONLY),
    "openai.responses.message": _values(content="y", role="assistant", type=ONLY),
    "openai.responses.message.text": _OF_TEXT,
    "openai.responses.message.refusal": _values(refusal="y", type=ONLY),
    "openai.responses.function_call": _OF_CALL | _values(call_id="f", type=ONLY),
    "openai.responses.function_call_output": _values(call_id="e", output="6", type=ONLY),
    "openai.responses.function_call_output.text": _OF_TEXT,
    "openai.responses.reasoning_item": _values(
        content=[{"type": "reasoning_text", "text": "x"}], summary=[{"type": "summary_text", "text": "x"}], type=ONLY
    ),
    "openai.responses.reasoning_item.content": _OF_TEXT,
    "openai.responses.reasoning_item.summary": _OF_TEXT,
    "anthropic.messages": _OF_MESSAGES | _values(max_tokens=9, stop_sequences=["x"], stream=True),
    "anthropic.count_tokens": _OF_MESSAGES,
    "anthropic.message": _values(clear_at="next_user_message", content="y", role="assistant"),
    "anthropic.text": _OF_TEXT,
    "anthropic.system.text": _OF_TEXT,
    "anthropic.thinking_block": _values(thinking="y", type=ONLY),
    "anthropic.redacted_thinking": _values(type=ONLY),
    "anthropic.tool_use": _values(id="v", input={"a": 1}, name="sub", type=ONLY),
    "anthropic.tool_result": _values(content="5", is_error=True, tool_use_id="u", type=ONLY),
    "anthropic.tool_result.text": _OF_TEXT,
    "anthropic.tool": _values(
        strict=True,
        description="Adds.", input_examples=[{"a": 1}], input_schema=_SCHEMA, name="sub", type=ONLY
    ),
    "anthropic.tool_choice": _values(
        disable_parallel_tool_use=True, name=Sample("sub", {"type": "tool", "name": "add"}), type="none"
    ),
    "anthropic.thinking": _values(
        budget_tokens=Sample(5, {"type": "enabled"}), display="omitted", type="disabled"
    ),
    "anthropic.output_config": _values(effort="low", format=_JSON_SCHEMA),
    "anthropic.output_format": _values(schema=_SCHEMA, type=ONLY),
    "anthropic.context_management": _values(**_CLEARED),
    "anthropic.clear_thinking": _values(keep="all", type=ONLY),
    "anthropic.clear_thinking.keep": _values(type="all", value=2),
    "ollama.chat": _OF_OLLAMA | _values(messages=[_BYE], tools=[_SUB]),
    "ollama.generate": _OF_OLLAMA | _values(prompt="y", raw=True, system="Be brief."),
    "ollama.embed": _values(
        dimensions=4, input="y", model="other", truncate=Sample(False, {"input": _LONG}, is_refused=True)
    ),
    "ollama.options": _values(
        frequency_penalty=0.5, num_predict=5, presence_penalty=0.5, repeat_last_n=Sample(0, {"repeat_penalty": 1.5}),
        repeat_penalty=1.5, seed=1, stop="x", temperature=0.5, top_k=5, top_p=0.5,
    ),
    "ollama.message": _values(
        content="y", role="assistant", thinking="Hm.", tool_calls=[_OLLAMA_CALL],
        tool_name=Sample("sub", {"role": "tool"}),
    ),
    "ollama.tool_call": _values(**_OLLAMA_CALL),
    "ollama.tool_call.function": _values(arguments={"a": 1}, name="sub"),
    "ollama.tool": _values(function=_FUNCTION, type=ONLY),
    "ollama.function": _OF_FUNCTION,
    "cohere.embed": _values(
        input_type="search_query",
        embedding_types=["base64"],
        inputs=Sample(
            [{"content": [{"type": "text", "text": "y"}]}],
            {"texts": None, "inputs": [{"content": [{"type": "text", "text": "x"}]}]},
        ),
        max_tokens=Sample(5, {"texts": [_LONG]}), model="other", output_dimension=4, priority=5, texts=["y"],
        truncate=Sample("START", {"texts": [f"{_LONG}end"]}),
    ),
    "cohere.embed.input": _values(content=[{"type": "text", "text": "y"}]),
    "cohere.embed.text": _OF_TEXT,
    "cohere.rerank": _values(documents=["z"], model="other", priority=5, query="z", top_n=1),
}  # fmt: skip

# What a value of a field needs beside it in the same object, by object, field and value.
VALUES_BESIDE: dict[tuple[str, str, str], Mapping[str, Any]] = {
    ("openai.chat.message", "role", "function"): {"name": "f"},
    ("openai.chat.message", "role", "tool"): {"tool_call_id": "c"},
    ("openai.chat.response_format", "type", "json_schema"): {"json_schema": {"name": "s", "schema": {}}},
    ("openai.responses.text.format", "type", "json_schema"): {"name": "s", "schema": {}},
    ("anthropic.tool_choice", "type", "tool"): {"name": "add"},
}
