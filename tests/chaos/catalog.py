"""The requests of the load. Each whose answer is read to its end is greedy or has a seed, so that its answer is the
same every time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from google.protobuf.message import Message

from quire.client.options import chat_request, embed_request, generate_request

Method = Literal["Chat", "Generate", "Embed"]
# Number of variants of each request, with prompts of their own.
NUM_VARIANTS = 2
_WORDS = {"type": "array", "items": {"type": "string", "minLength": 5, "maxLength": 8}, "minItems": 6, "maxItems": 6}
_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"words": _WORDS, "year": {"type": "integer", "minimum": 1000, "maximum": 9999}},
    "required": ["words", "year"],
    "additionalProperties": False,
}
_AS_SCHEMA = {"type": "json_schema", "json_schema": {"name": "words", "schema": _SCHEMA, "strict": True}}
_TOOL = {"type": "function", "function": {"name": "register", "parameters": _SCHEMA}}
_STREAM = {"stream": True, "stream_options": {"include_usage": True}}
_FREE = {"ignore_eos": True}


@dataclass(frozen=True, slots=True)
class HttpRequest:
    name: str
    path: str
    body: Mapping[str, Any]
    # Number of events after which the client goes away. None: it reads the whole answer.
    leaves_after: int | None = None

    @property
    def is_stream(self) -> bool:
        return bool(self.body.get("stream"))


@dataclass(frozen=True, slots=True)
class GrpcRequest:
    name: str
    method: Method
    message: Message
    leaves_after: int | None = None


Request = HttpRequest | GrpcRequest


def catalog(model: str, max_tokens: int = 300) -> tuple[Request, ...]:
    """Returns all requests for a model that generates and embeds. `max_tokens`: length of most answers."""
    return tuple(request for variant in range(NUM_VARIANTS) for request in _variant(model, variant, max_tokens))


def _variant(model: str, variant: int, max_tokens: int) -> list[Request]:
    question = [{"role": "user", "content": f"Count from {variant + 1} to 60."}]
    ids = [(7 * position + 31 * variant) % 900 + 10 for position in range(300)]
    greedy: dict[str, Any] = {"temperature": 0, "max_tokens": max_tokens}
    sampled: dict[str, Any] = {"temperature": 1.0, "seed": 7 + variant, "max_tokens": max_tokens}
    of_model = f" ({model})"
    at_once: dict[str, Any] = {"reasoning_effort": "none", "max_tokens": 400}

    def chat(name: str, **fields: Any) -> HttpRequest:
        body = {"model": model, "messages": question, "return_token_ids": True, **fields}
        return HttpRequest(f"{name} {variant}{of_model}", "/v1/chat/completions", body)

    def completion(name: str, **fields: Any) -> HttpRequest:
        return HttpRequest(f"{name} {variant}{of_model}", "/v1/completions", {"model": model, **fields})

    return [
        chat("chat, streamed", **greedy, **_FREE, **_STREAM),
        chat("chat, whole", **greedy, **_FREE),
        chat("chat, n = 3, logprobs", n=3, logprobs=True, top_logprobs=2, **sampled, **_FREE, **_STREAM),
        chat("chat, schema", response_format=_AS_SCHEMA, temperature=0, **at_once, **_STREAM),
        chat("chat, sampled schemas", response_format=_AS_SCHEMA, n=2, temperature=1.1, seed=3, **at_once, **_STREAM),
        chat("chat, tool", tools=[_TOOL], tool_choice="required", parallel_tool_calls=False, temperature=0.8,
             seed=variant, **at_once, **_STREAM),
        completion("completion, stop string", prompt=f"So {variant}", stop=["#end#"], temperature=0.9, seed=8,
                   max_tokens=400, guided_regex="([a-z]{5} ){20}#end#[a-z]{100}", **_STREAM),
        completion("completion, logprobs", prompt="The cat", logprobs=2, return_token_ids=True, **greedy, **_FREE,
                   **_STREAM),
        completion("completion, echo", prompt=ids, echo=True, logprobs=2, temperature=0, max_tokens=10, **_FREE),
        completion("completion, long prompt", prompt=ids * 2, **greedy, **_FREE, **_STREAM),
        HttpRequest(f"embeddings {variant}{of_model}", "/v1/embeddings",
                    {"model": model, "input": [ids[at:] for at in range(0, 200, 50)], "encoding_format": "float"}),
        GrpcRequest(f"gRPC Chat {variant}{of_model}", "Chat",
                    chat_request(model, question, {"temperature": 0.7, "seed": variant, "max_tokens": max_tokens,
                                                   "ignore_eos": True, "logprobs": 1})),
        GrpcRequest(f"gRPC Generate {variant}{of_model}", "Generate",
                    generate_request(model, ids[:32], {"temperature": 0, "max_tokens": max_tokens, "ignore_eos": True,
                                                       "n": 2})),
        GrpcRequest(f"gRPC Embed {variant}{of_model}", "Embed", embed_request(model, [ids[:90], ids[:40]], {})),
        HttpRequest(f"completion, left {variant}{of_model}", "/v1/completions",
                    {"model": model, "prompt": "Once", "max_tokens": 600, "temperature": 0, "return_token_ids": True,
                     **_FREE, **_STREAM}, leaves_after=10),
        GrpcRequest(f"gRPC Chat, left {variant}{of_model}", "Chat",
                    chat_request(model, question, {"temperature": 0, "max_tokens": 600, "ignore_eos": True}),
                    leaves_after=15),
    ]  # fmt: skip
