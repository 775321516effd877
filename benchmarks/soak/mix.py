"""The mixed traffic: random requests of every API. Most requests repeat, so that their answers can be compared. Some
are unique, so that cached blocks are evicted."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from benchmarks.abuse.attack import MODEL
from benchmarks.soak import said
from benchmarks.soak.grpc_mix import GRPC
from benchmarks.soak.request import Request, left_after, left_within, over_http

_CHAT, _COMPLETIONS = "/v1/chat/completions", "/v1/completions"
_TOOL_PARAMETERS = {"type": "object", "properties": {"city": {"enum": ["Bonn", "Paris"]}}, "required": ["city"]}
_TOOL = {"type": "function", "function": {"name": "weather", "parameters": _TOOL_PARAMETERS}}
_SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}
_STRUCTURES: tuple[dict[str, Any], ...] = (
    {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": _SCHEMA}}},
    {"structured_outputs": {"regex": "[a-z]{1,8}"}},
    {"structured_outputs": {"choice": ["yes", "no"]}},
    {"structured_outputs": {"grammar": 'root ::= "a" | "b"'}},
    {"tools": [_TOOL], "tool_choice": "required", "parallel_tool_calls": False},
)
_TEMPLATE = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
_TEXTS = ("Once", "Hello!", "What is 3 plus 4?", "The cat")
_WRONG: tuple[tuple[str, Mapping[str, Any] | bytes], ...] = (
    (_CHAT, b"{nonsense"),
    (_CHAT, b"[1, 2]"),
    (_CHAT, {"messages": []}),
    (_CHAT, {"messages": [{"role": "user", "content": "Hello!"}], "temperature": "hot"}),
    (_CHAT, {"messages": [{"role": "user", "content": "Hello!"}], "n": 0}),
    (_CHAT, {"messages": [{"role": "user", "content": "a " * 5000}]}),
    (_CHAT, {"messages": [{"role": "user", "content": "Hello!"}], "structured_outputs": {"regex": "("}}),
    (_COMPLETIONS, {"prompt": [1, 10**6]}),
    (_COMPLETIONS, {"prompt": "Once", "max_tokens": -1, "stream": True}),
    ("/v1/messages", {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 0}),
    ("/v1/responses", {"input": 5}),
    ("/api/chat", {"messages": 5}),
    ("/v2/models/quire-chat/generate", {"text_input": 5}),
)  # fmt: skip


def question(chance: random.Random) -> str:
    return f"What is {chance.randint(1, 7)} plus {chance.randint(1, 7)}?"


def _messages(chance: random.Random) -> list[dict[str, str]]:
    turns = [{"role": "user", "content": question(chance)}]
    if chance.random() < 0.2:
        turns += [{"role": "assistant", "content": "I do not know."}, {"role": "user", "content": "Try again."}]
    return turns


def _chat(chance: random.Random, name: str = "chat", **fields: Any) -> Request:
    is_streamed = chance.random() < 0.5
    body = {"model": MODEL, "messages": _messages(chance), "temperature": 0, "max_tokens": 40, **fields}
    if is_streamed:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    reader = said.chat_stream if is_streamed else said.chat
    return over_http(f"{name}, streamed" if is_streamed else name, _CHAT, body, said=reader)


def _choices(chance: random.Random) -> Request:
    return _chat(chance, "chat, n > 1", n=chance.randint(2, 4), temperature=1, seed=chance.randint(1, 3))


def _log_probabilities(chance: random.Random) -> Request:
    return _chat(chance, "chat, log probabilities", logprobs=True, top_logprobs=chance.choice((0, 3, 20)))


def _structured(chance: random.Random) -> Request:
    return _chat(chance, "chat, structure or tool", **chance.choice(_STRUCTURES))


def _own_template(chance: random.Random) -> Request:
    return _chat(chance, "chat, own template", chat_template=_TEMPLATE, max_tokens=10)


def _completion(chance: random.Random) -> Request:
    is_streamed = chance.random() < 0.5
    body: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_tokens": chance.choice((1, 16, 64))}
    ids = list(range(20, 52))
    body["prompt"] = chance.choice((*_TEXTS, ids, list(_TEXTS), [ids, ids[:7]]))
    body |= chance.choice(
        (
            {}, {"echo": True}, {"stop": ["a", "."]}, {"temperature": 1, "seed": chance.randint(1, 3)}, {"logprobs": 2},
            {"ignore_eos": True}, {"logit_bias": {"30": 5}}, {"n": 2},
        )
    )  # fmt: skip
    if is_streamed:
        body["stream"] = True
    reader = said.chat_stream if is_streamed else said.completion
    return over_http("completions, streamed" if is_streamed else "completions", _COMPLETIONS, body, said=reader)


def _never_again(chance: random.Random) -> Request:
    prompt = [chance.randrange(10, 900) for _ in range(chance.randint(16, 1200))]
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 4}
    return over_http("completions, a prompt of its own", _COMPLETIONS, body)


def _message(chance: random.Random) -> Request:
    is_streamed = chance.random() < 0.5
    body = {"model": MODEL, "messages": _messages(chance), "temperature": 0, "max_tokens": 30, "stream": is_streamed}
    return over_http("Anthropic", "/v1/messages", body, said=said.message_stream if is_streamed else said.message)


def _response(chance: random.Random) -> Request:
    is_streamed = chance.random() < 0.5
    body = {"model": MODEL, "input": question(chance), "temperature": 0, "max_output_tokens": 30, "stream": is_streamed}
    return over_http("Responses", "/v1/responses", body, said=said.response_stream if is_streamed else said.response)


def _ollama(chance: random.Random) -> Request:
    options = {"temperature": 0, "num_predict": 30}
    body: dict[str, Any] = {"model": MODEL, "options": options, "stream": chance.random() < 0.5}
    if chance.random() < 0.5:
        return over_http("Ollama", "/api/chat", body | {"messages": _messages(chance)}, said=said.ollama)
    return over_http("Ollama", "/api/generate", body | {"prompt": question(chance)}, said=said.ollama)


def _kserve(chance: random.Random) -> Request:
    text, options = chance.choice(_TEXTS), {"temperature": 0, "max_tokens": 20}
    tensor = {"name": "text_input", "datatype": "BYTES", "shape": [1], "data": [text]}
    call, body, reader = chance.choice(
        (
            ("generate", {"text_input": text, **options}, said.kserve),
            ("generate_stream", {"text_input": text, **options}, said.kserve_stream),
            ("infer", {"inputs": [tensor], "parameters": options}, said.kserve_tensor),
        )
    )
    return over_http("KServe", f"/v2/models/{MODEL}/{call}", body, said=reader)


def _small(chance: random.Random) -> Request:
    """Returns a request that generates no tokens."""
    return chance.choice(
        (
            over_http("models", "/v1/models", said=said.models),
            over_http("model", f"/v1/models/{MODEL}"),
            over_http("tokenize", "/tokenize", {"model": MODEL, "prompt": question(chance)}, said=said.tokens),
            over_http("detokenize", "/detokenize", {"model": MODEL, "tokens": [298, 933]}, said=said.prompt),
            over_http("health", "/health"),
            over_http("metrics", "/metrics"),
        )
    )


def _embedding(chance: random.Random) -> Request:
    inputs = [question(chance) for _ in range(chance.randint(1, 3))]
    return over_http("embeddings", "/v1/embeddings", {"model": MODEL, "input": inputs}, said=said.dimensions)


def _left(chance: random.Random) -> Request:
    """Returns a request whose client disconnects in the middle of a long answer, mostly a streamed one."""
    body = {
        "model": MODEL,
        "prompt": question(chance),
        "max_tokens": 1500,
        "ignore_eos": True,
        "n": chance.randint(1, 2),
    }
    if chance.random() < 0.3:
        return left_within("a whole answer, left", _COMPLETIONS, body, chance.uniform(0.01, 0.3))
    return left_after("a stream, left", _COMPLETIONS, body | {"stream": True}, chance.randint(0, 20))


def _invalid(chance: random.Random) -> Request:
    path, body = chance.choice(_WRONG)
    named = body if isinstance(body, bytes) else {"model": MODEL, **body}
    return over_http("invalid", path, named, status=400)


def _no_such(chance: random.Random) -> Request:
    unknown_model = {"model": "none", "messages": [{"role": "user", "content": "Hello!"}]}
    return chance.choice(
        (
            over_http("wrong path", f"/v1/nothing/{chance.randint(1, 9)}", status=404),
            over_http("wrong path", "/v1/nothing", {}, status=404),
            over_http("unknown model", "/v1/models/none", status=404),
            over_http("unknown model", _CHAT, unknown_model, status=404),
        )
    )


# Kinds of requests with their relative frequencies.
_WEIGHTS: tuple[tuple[Callable[[random.Random], Request], int], ...] = (
    (_chat, 8), (_choices, 3), (_log_probabilities, 3), (_structured, 4), (_own_template, 2), (_completion, 8),
    (_never_again, 4), (_message, 4), (_response, 4), (_ollama, 4), (_kserve, 4), (_small, 4), (_left, 6),
    (_invalid, 4), (_no_such, 2), *((make, 3) for make in GRPC),
)  # fmt: skip


def mixed(seed: str, embeds: bool) -> Iterator[Request]:
    """Yields requests without end; the same seed gives the same requests. `embeds`: whether the model has
    embeddings."""
    chance = random.Random(seed)
    weights = (*_WEIGHTS, (_embedding, 3)) if embeds else _WEIGHTS
    makers, parts = zip(*weights, strict=True)
    while True:
        (make,) = chance.choices(makers, parts)
        yield make(chance)


def for_children() -> list[Request]:
    """Returns requests with templates and grammars. Sent in parallel, they need all of the router's child processes."""
    chance = random.Random(1)
    return [*(_own_template(chance) for _ in range(8)), *(_structured(chance) for _ in range(8))]


def embeds(models: bytes) -> bool:
    """Returns whether the model has embeddings, according to an answer of /v1/models."""
    return any("embed" in model.get("tasks", ()) for model in json.loads(models)["data"])
