"""From Python arguments to the typed API's requests."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict

from quire.client.tools import Tool, tool_choice_to_proto, tools_to_proto
from quire.inference.v1 import constraints_pb2, inference_pb2, pooling_pb2, sampling_pb2


class Options(TypedDict, total=False):
    """How to generate; every option may be left out. Meanings and ranges as in quire/inference/v1/sampling.proto."""

    max_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    # Token id to bias.
    logit_bias: Mapping[int, float]
    seed: int
    logprobs: int
    prompt_logprobs: int
    # Strings that end the output.
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    min_tokens: int
    # What the output must be, one of: a JSON schema, as an object or as JSON; True for any JSON object; a regular
    # expression; strings of which it is one; a grammar in Lark's notation or in GBNF.
    json_schema: Mapping[str, Any] | str
    json_object: bool
    regex: str
    choices: Sequence[str]
    grammar: str
    # No other tokens are drawn.
    allowed_token_ids: Sequence[int]
    # Strings that must not stand in the output.
    bad_words: Sequence[str]
    n: int
    skip_special_tokens: bool
    cache_salt: str
    priority: int
    tenant: str


_SAMPLING = tuple(
    field.name
    for field in sampling_pb2.SamplingParams.DESCRIPTOR.fields
    if field.name in Options.__annotations__ and field.name != "logit_bias"
)


class ChatOptions(Options, total=False):
    """What chats take besides."""

    tools: Sequence[Tool]
    # auto, none, required, or the name of the function to call.
    tool_choice: str
    # Whether one message may hold several calls.
    parallel_tool_calls: bool


class EmbedOptions(TypedDict, total=False):
    """How to embed; every option may be left out. Meanings as in EmbedRequest (quire/inference/v1/inference.proto)."""

    dimensions: int
    normalize: bool
    truncate_prompt_tokens: int
    cache_salt: str
    priority: int
    tenant: str


# A role and content each; an assistant's may have `reasoning` and `tool_calls` (those of a Result), a tool's has the
# `tool_call_id` that it answers.
Messages = Iterable[Mapping[str, Any]]


def generate_request(
    model: str, prompt: str | Sequence[int], options: Options, *, whole: bool = False
) -> inference_pb2.GenerateRequest:
    """`prompt`: text, or token ids. `whole`: whether each choice comes in one piece."""
    request = inference_pb2.GenerateRequest(model=model, options=options_to_proto(options), whole=whole)
    if isinstance(prompt, str):
        request.text = prompt
    else:
        request.token_ids.ids.extend(prompt)
        request.token_ids.SetInParent()
    return request


def chat_request(model: str, messages: Messages, options: ChatOptions) -> inference_pb2.ChatRequest:
    values: dict[str, Any] = dict(options)
    request = inference_pb2.ChatRequest(
        model=model,
        messages=messages_to_proto(messages),
        tools=tools_to_proto(values.pop("tools", None) or ()),
        tool_choice=tool_choice_to_proto(values.pop("tool_choice", None), values.pop("parallel_tool_calls", None)),
    )
    request.options.CopyFrom(options_to_proto(values))
    return request


def embed_request(
    model: str, inputs: Sequence[str] | Sequence[Sequence[int]], options: EmbedOptions
) -> inference_pb2.EmbedRequest:
    """`inputs`: texts, or token ids of each. Raises TypeError for an option that there is not."""
    if unknown := options.keys() - EmbedOptions.__annotations__.keys():
        raise TypeError(f"there is no option {min(unknown)!r}")
    request = inference_pb2.EmbedRequest(
        model=model,
        pooling=pooling_pb2.PoolingParams(dimensions=options.get("dimensions"), normalize=options.get("normalize")),
        truncate_prompt_tokens=options.get("truncate_prompt_tokens"),
        cache_salt=options.get("cache_salt", ""),
        priority=options.get("priority", 0),
        tenant=options.get("tenant", ""),
    )
    for given in inputs:
        if isinstance(given, str):
            request.inputs.add(text=given)
        else:
            request.inputs.add(token_ids=inference_pb2.TokenIds(ids=given))
    return request


def tokenize_request(
    model: str, text: str | Messages, add_special_tokens: bool | None
) -> inference_pb2.TokenizeRequest:
    request = inference_pb2.TokenizeRequest(model=model)
    if isinstance(text, str):
        request.text = text
    else:
        request.chat.CopyFrom(inference_pb2.ChatMessages(messages=messages_to_proto(text)))
    if add_special_tokens is not None:
        request.add_special_tokens = add_special_tokens
    return request


def messages_to_proto(messages: Messages) -> list[inference_pb2.ChatMessage]:
    return [
        inference_pb2.ChatMessage(
            role=message["role"],
            content=message.get("content") or "",
            reasoning=message.get("reasoning") or "",
            tool_calls=[
                inference_pb2.ToolCall(id=call.id, name=call.name, arguments=call.arguments)
                for call in message.get("tool_calls") or ()
            ],
            tool_call_id=message.get("tool_call_id") or "",
        )
        for message in messages
    ]


def options_to_proto(options: Mapping[str, Any]) -> inference_pb2.GenerationOptions:
    """Raises TypeError for an option that there is not."""
    if unknown := options.keys() - Options.__annotations__.keys():
        raise TypeError(f"there is no option {min(unknown)!r}")
    values: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    sampling = sampling_pb2.SamplingParams(**{name: values[name] for name in _SAMPLING if name in values})
    for token_id, bias in values.get("logit_bias", {}).items():
        sampling.logit_bias.add(token_id=token_id, bias=bias)
    stop = sampling_pb2.StopConditions(
        max_tokens=values.get("max_tokens"),
        stop_token_ids=values.get("stop_token_ids", ()),
        ignore_eos=values.get("ignore_eos", False),
        min_tokens=values.get("min_tokens", 0),
    )
    strings = values.get("stop", ())
    return inference_pb2.GenerationOptions(
        sampling=sampling,
        stop=stop,
        stop_strings=[strings] if isinstance(strings, str) else strings,
        n=values.get("n"),
        skip_special_tokens=values.get("skip_special_tokens"),
        cache_salt=values.get("cache_salt", ""),
        priority=values.get("priority", 0),
        tenant=values.get("tenant", ""),
        structure=_structure_to_proto(values),
        allowed_token_ids=values.get("allowed_token_ids", ()),
        bad_words=values.get("bad_words", ()),
    )


def _structure_to_proto(values: Mapping[str, Any]) -> constraints_pb2.Structure | None:
    """Raises TypeError where an output is to have two structures."""
    given = [name for name in ("json_schema", "json_object", "regex", "choices", "grammar") if values.get(name)]
    if len(given) > 1:
        raise TypeError(f"{given[0]!r} and {given[1]!r} exclude each other")
    if not given:
        return None
    value = values[given[0]]
    match given[0]:
        case "json_schema":
            return constraints_pb2.Structure(json_schema=value if isinstance(value, str) else json.dumps(value))
        case "json_object":
            return constraints_pb2.Structure(json_object=constraints_pb2.JsonObject())
        case "choices":
            return constraints_pb2.Structure(choices=constraints_pb2.Choices(texts=value))
        case name:
            return constraints_pb2.Structure(**{name: value})
