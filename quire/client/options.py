"""From Python arguments to the typed API's requests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict

from quire.inference.v1 import inference_pb2, pooling_pb2, sampling_pb2


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
    # Strings that end the output.
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    n: int
    cache_salt: str
    priority: int
    tenant: str


_SAMPLING = tuple(
    field.name
    for field in sampling_pb2.SamplingParams.DESCRIPTOR.fields
    if field.name in Options.__annotations__ and field.name != "logit_bias"
)

# A role and content each, or a mapping with these keys.
Messages = Iterable[Mapping[str, str]]


def generate_request(model: str, prompt: str | Sequence[int], options: Options) -> inference_pb2.GenerateRequest:
    """`prompt`: text, or token ids."""
    request = inference_pb2.GenerateRequest(model=model, options=options_to_proto(options))
    if isinstance(prompt, str):
        request.text = prompt
    else:
        request.token_ids.ids.extend(prompt)
        request.token_ids.SetInParent()
    return request


class EmbedOptions(TypedDict, total=False):
    """How to embed; every option may be left out. Meanings as in EmbedRequest (quire/inference/v1/inference.proto)."""

    dimensions: int
    normalize: bool
    truncate_prompt_tokens: int
    cache_salt: str
    priority: int
    tenant: str


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


def chat_request(model: str, messages: Messages, options: Options) -> inference_pb2.ChatRequest:
    return inference_pb2.ChatRequest(
        model=model, messages=messages_to_proto(messages), options=options_to_proto(options)
    )


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
    return [inference_pb2.ChatMessage(role=message["role"], content=message["content"]) for message in messages]


def options_to_proto(options: Options) -> inference_pb2.GenerationOptions:
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
    )
    strings = values.get("stop", ())
    return inference_pb2.GenerationOptions(
        sampling=sampling,
        stop=stop,
        stop_strings=[strings] if isinstance(strings, str) else strings,
        n=values.get("n"),
        cache_salt=values.get("cache_salt", ""),
        priority=values.get("priority", 0),
        tenant=values.get("tenant", ""),
    )
