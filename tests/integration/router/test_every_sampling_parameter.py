"""Every sampling parameter reaches the scheduler from every surface, or the surface is listed as without it.

A parameter that is added to `SamplingParams` fails here until each surface has it or says that it has not.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from quire import AsyncClient, SamplingParams
from quire.batch.format import parse_request
from quire.inference.v1 import sampling_pb2
from quire.kserve.v1 import open_inference_pb2
from quire.offline.engine import Engine, Request
from quire.offline.prompts import Prompt
from tests.integration.router import test_kserve_generation as kserve
from tests.integration.router import test_other_apis as other_apis
from tests.integration.router.conftest import MODEL, Api, StartRouter, fake_scheduler

# A value of each, which is neither its default nor the model's own.
VALUES: dict[str, Any] = {
    "temperature": 0.5,
    "top_k": 7,
    "top_p": 0.25,
    "min_p": 0.125,
    "repetition_penalty": 1.5,
    "presence_penalty": 0.75,
    "frequency_penalty": -0.5,
    "logit_bias": {5: 1.5},
    "seed": 11,
    "logprobs": 3,
    "prompt_logprobs": 2,
    "logprob_token_ids": [4, 6],
}
MESSAGES = [{"role": "user", "content": "Hello"}]
PENALTIES = frozenset({"repetition_penalty", "presence_penalty", "frequency_penalty"})
# In OpenAI's and vLLM's bodies only.
VLLM_ONLY = frozenset({"logit_bias", "prompt_logprobs", "logprob_token_ids"})


@dataclass(frozen=True)
class Surface:
    """`send` posts fields in the surface's own form. `lacks`: parameters that its API has no field for. `names`: how
    fields are written where the name or form is not the proto's."""

    name: str
    send: Callable[[Api, dict[str, Any]], Awaitable[object]]
    lacks: frozenset[str] = frozenset()
    names: Mapping[str, Callable[[Any], dict[str, Any]]] = field(default_factory=dict)

    def fields(self, name: str) -> dict[str, Any]:
        value = VALUES[name]
        return self.names[name](value) if name in self.names else {name: value}


def json_body(service: str, method: str, **rest: Any) -> Callable[[Api, dict[str, Any]], Awaitable[object]]:
    async def send(api: Api, fields: dict[str, Any]) -> None:
        if service == "openai":
            await api.post(method, {"model": MODEL, **rest, **fields})
        else:
            await other_apis.post(api, method, {"model": MODEL, **rest, **fields})

    return send


async def batch_line(api: Api, fields: dict[str, Any]) -> None:
    body = {"model": MODEL, "messages": MESSAGES, **fields}
    line = {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": body}
    await api.post("CreateChatCompletion", parse_request(json.dumps(line).encode()).body)


def ollama_body(method: str, **rest: Any) -> Callable[[Api, dict[str, Any]], Awaitable[object]]:
    async def send(api: Api, fields: dict[str, Any]) -> None:
        whole = {name: fields.pop(name) for name in ("logprobs", "top_logprobs") if name in fields}
        await other_apis.post(api, method, {"model": MODEL, "options": fields, **rest, **whole})

    return send


async def kserve_generate(api: Api, fields: dict[str, Any]) -> None:
    await kserve.post(api, "Generate", {"text_input": "Hello", "parameters": fields})


async def kserve_infer(api: Api, fields: dict[str, Any]) -> None:
    Parameter = open_inference_pb2.InferParameter  # noqa: N806
    text = kserve.Input(
        name="text_input", datatype="BYTES", shape=[1], contents=kserve.Contents(bytes_contents=[b"Hello"])
    )
    parameters = {
        name: Parameter(int64_param=value) if isinstance(value, int) else Parameter(double_param=value)
        for name, value in fields.items()
    }
    await kserve.infer(api, inputs=[text], parameters=parameters)


async def client_generate(api: Api, fields: dict[str, Any]) -> None:
    async with AsyncClient(api.address) as client:
        await client.generate("Hello", **fields)


async def client_chat(api: Api, fields: dict[str, Any]) -> None:
    async with AsyncClient(api.address) as client:
        await client.chat(MESSAGES, **fields)


async def offline(api: Api, fields: dict[str, Any]) -> None:
    engine = Engine(api.address, None, 1, lambda: None)
    try:
        await engine.answer([Request("0", Prompt(text="Hello"), SamplingParams(**fields), 0)], lambda _: None)
    finally:
        await engine.close()


def string_keys(value: dict[int, float]) -> dict[str, Any]:
    return {"logit_bias": {str(key): bias for key, bias in value.items()}}


CHAT_NAMES: dict[str, Callable[[Any], dict[str, Any]]] = {
    "logit_bias": string_keys,
    "logprobs": lambda value: {"logprobs": True, "top_logprobs": value},
    "logprob_token_ids": lambda value: {"logprobs": True, "logprob_token_ids": value},
}
OLLAMA_NAMES: dict[str, Callable[[Any], dict[str, Any]]] = {
    "repetition_penalty": lambda value: {"repeat_penalty": value},
    "logprobs": lambda value: {"logprobs": True, "top_logprobs": value},
}
KSERVE_LACKS = VLLM_ONLY | {"logprobs"}
WITH_LOGPROBS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "logprob_token_ids": lambda value: {"logprobs": 0, "logprob_token_ids": value},
}
SURFACES = [
    Surface("chat", json_body("openai", "CreateChatCompletion", messages=MESSAGES), names=CHAT_NAMES),
    Surface(
        "chats",
        json_body("openai", "CreateChatCompletionBatch", messages=[MESSAGES]),
        lacks=frozenset({"prompt_logprobs"}),
        names=CHAT_NAMES,
    ),
    Surface(
        "completions",
        json_body("openai", "CreateCompletion", prompt="Hello"),
        names={"logit_bias": string_keys, **WITH_LOGPROBS},
    ),
    Surface(
        "responses",
        json_body("openai", "CreateResponse", input="Hello"),
        lacks=VLLM_ONLY,
        names={"logprobs": lambda value: {"top_logprobs": value}},
    ),
    Surface("batch", batch_line, names=CHAT_NAMES),
    # Anthropic's API has these three parameters, and no other server adds more.
    Surface(
        "messages",
        json_body("anthropic", "CreateMessage", messages=MESSAGES, max_tokens=4),
        lacks=PENALTIES | VLLM_ONLY | {"min_p", "seed", "logprobs"},
    ),
    Surface("ollama chat", ollama_body("Chat", messages=MESSAGES, stream=False), VLLM_ONLY, OLLAMA_NAMES),
    Surface("ollama generate", ollama_body("Generate", prompt="Hello", stream=False), VLLM_ONLY, OLLAMA_NAMES),
    Surface("kserve generate", kserve_generate, KSERVE_LACKS),
    Surface("kserve infer", kserve_infer, KSERVE_LACKS),
    Surface("client generate", client_generate, names=WITH_LOGPROBS),
    Surface("client chat", client_chat, names=WITH_LOGPROBS),
    Surface("LLM", offline, names=WITH_LOGPROBS),
]


def test_every_parameter_has_a_value_here() -> None:
    assert VALUES.keys() == {field.name for field in sampling_pb2.SamplingParams.DESCRIPTOR.fields}
    assert all(surface.lacks < VALUES.keys() for surface in SURFACES)


@pytest.mark.parametrize("surface", SURFACES, ids=lambda surface: surface.name)
async def test_every_parameter_reaches_the_scheduler(start_router: StartRouter, surface: Surface) -> None:
    scheduler = fake_scheduler()
    api = await start_router(scheduler)
    for name in VALUES.keys() - surface.lacks:
        await surface.send(api, surface.fields(name))
        sampling = scheduler.submits[-1].sampling
        match name:
            case "logit_bias":
                assert {entry.token_id: entry.bias for entry in sampling.logit_bias} == VALUES[name]
            case "logprob_token_ids":
                assert list(sampling.logprob_token_ids) == VALUES[name]
            case _:
                assert getattr(sampling, name) == VALUES[name], name
    assert len(scheduler.submits) == len(VALUES.keys() - surface.lacks)
