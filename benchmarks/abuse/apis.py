"""Large requests to the APIs besides OpenAI's chat completions: about as much as each one takes, and more."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import grpc
from google.protobuf.message import Message

from benchmarks.abuse.attack import MODEL, Answer, Attack, Row, Target, http_request, posting, sending
from benchmarks.abuse.large import HELLO
from quire.inference.v1 import inference_pb2, inference_pb2_grpc
from quire.kserve.v1 import open_inference_pb2, open_inference_pb2_grpc

_STATUSES = {
    grpc.StatusCode.OK: 200,
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
}
# An ordinary word of the model.
_ID = 300
_WORDS = "word " * 15
# The answers to a request with as many sequences as there are places. Eight of them are more than the queue holds.
_BUSY = (200, 429)


def calling(stub: type, method: str, request: Message) -> Attack:
    """Returns an attack that calls a method of a gRPC service through the gateway, and reads the whole answer. The
    answer has the HTTP status that corresponds to the call's: 413 for a message that is too large, 500 for those that
    are not in _STATUSES."""

    async def attack(target: Target) -> Answer:
        async with grpc.aio.insecure_channel(f"{target.host}:{target.port}") as channel:
            call = getattr(stub(channel), method)(request)
            num_bytes = 0
            try:
                if hasattr(call, "read"):
                    async for message in call:
                        num_bytes += message.ByteSize()
                else:
                    num_bytes = (await call).ByteSize()
            except grpc.aio.AioRpcError as error:
                status = 413 if "too large" in str(error.details()) else _STATUSES.get(error.code(), 500)
                return Answer(status, f"{error.code().name}: {error.details()}", num_bytes)
        return Answer(200, f"{num_bytes:,} bytes", num_bytes)

    return attack


typed = partial(calling, inference_pb2_grpc.InferenceServiceStub)
kserve = partial(calling, open_inference_pb2_grpc.GRPCInferenceServiceStub)


def embedded(count: int) -> Attack:
    return posting("/v1/embeddings", input=[_WORDS] * count)


def scored(count: int) -> Attack:
    return posting("/v1/score", text_1=_WORDS, text_2=[_WORDS] * count)


def ranked(count: int) -> Attack:
    return posting("/v1/rerank", query=_WORDS, documents=[_WORDS] * count)


def conversations(count: int) -> Attack:
    return posting("/v1/chat/completions/batch", messages=[HELLO * 9] * count, max_tokens=2)


def detokenized(count: int) -> Attack:
    return posting("/detokenize", tokens=[_ID] * count)


def anthropic(path: str = "/v1/messages", **fields: Any) -> Attack:
    return posting(path, max_tokens=2, **({"messages": HELLO} | fields))


def anthropic_blocks(count: int) -> Attack:
    block = {"type": "text", "text": "a"}
    return anthropic(messages=[{"role": "user", "content": [block] * count}])


def anthropic_tools(tools: int = 128, fields: int = 250) -> Attack:
    schema = {"type": "object", "properties": {f"f{number}": {} for number in range(fields)}}
    return anthropic(tools=[{"name": f"t{number}", "input_schema": schema} for number in range(tools)])


def anthropic_results(count: int) -> Attack:
    """Calls of one message, and a result for each in the next."""
    calls = [{"type": "tool_use", "id": f"c{number}", "name": "t", "input": {}} for number in range(count)]
    results = [{"type": "tool_result", "tool_use_id": f"c{number}", "content": "a"} for number in range(count)]
    return anthropic(messages=[{"role": "assistant", "content": calls}, {"role": "user", "content": results}])


def response_items(count: int) -> Attack:
    return posting("/v1/responses", input=[{"role": "user", "content": "a"}] * count, max_output_tokens=2)


def kserve_generate(**fields: Any) -> Attack:
    body = {"text_input": "Hello!", "max_tokens": 2} | fields
    return sending(http_request(f"/v2/models/{MODEL}/generate", json.dumps(body).encode()))


def kserve_texts(count: int) -> Attack:
    tensor = {"name": "text_input", "datatype": "BYTES", "shape": [count], "data": ["Hello!"] * count}
    return sending(http_request(f"/v2/models/{MODEL}/infer", json.dumps({"inputs": [tensor]}).encode()))


def kserve_contents(count: int) -> Attack:
    request = open_inference_pb2.ModelInferRequest(model_name=MODEL)
    tensor = request.inputs.add(name="text_input", datatype="BYTES", shape=[count])
    tensor.contents.bytes_contents.extend([b"Hello!"] * count)
    return kserve("ModelInfer", request)


def generate_ids(count: int, **options: Any) -> Attack:
    prompt = inference_pb2.TokenIds(ids=[_ID] * count)
    chosen = inference_pb2.GenerationOptions(**options)
    return typed("Generate", inference_pb2.GenerateRequest(model=MODEL, token_ids=prompt, options=chosen))


def embed_ids(inputs: int, ids: int) -> Attack:
    one = inference_pb2.EmbedInput(token_ids=inference_pb2.TokenIds(ids=[_ID] * ids))
    return typed("Embed", inference_pb2.EmbedRequest(model=MODEL, inputs=[one] * inputs))


def chat_messages(count: int) -> Attack:
    message = inference_pb2.ChatMessage(role="user", content="a")
    request = inference_pb2.ChatRequest(model=MODEL, messages=[message] * count)
    request.options.stop.max_tokens = 2
    return typed("Chat", request)


def typed_scores(count: int) -> Attack:
    return typed("Score", inference_pb2.ScoreRequest(model=MODEL, text_1=[_WORDS], text_2=[_WORDS] * count))


ROWS = (
    Row("embeddings: 2,048 texts", partial(embedded, 2048), _BUSY, takes_all_places=True),
    Row("embeddings: 40,000 texts", partial(embedded, 40_000), (400,), "input"),
    Row("scores: 2,048 texts", partial(scored, 2048), _BUSY, takes_all_places=True),
    Row("scores: 40,000 texts", partial(scored, 40_000), (400,)),
    Row("ranking: 2,048 documents", partial(ranked, 2048), _BUSY, takes_all_places=True),
    Row("ranking: 40,000 documents", partial(ranked, 40_000), (400,)),
    Row("chat batch: 256 conversations of 9 messages", partial(conversations, 256), _BUSY, takes_all_places=True),
    Row("chat batch: 3,000 conversations of 9 messages", partial(conversations, 3000), (400,), "messages"),
    Row("/detokenize: 500,000 ids", partial(detokenized, 500_000), (200,)),
    Row("/detokenize: 700,000 ids", partial(detokenized, 700_000), (400,), "tokens"),
    Row("Anthropic: 30,000 content blocks", partial(anthropic_blocks, 30_000), (400,)),
    Row("Anthropic: 100,000 content blocks", partial(anthropic_blocks, 100_000), (400,)),
    Row("Anthropic: 128 tools of 250 fields", anthropic_tools, (400,)),
    Row("Anthropic: 9,000 calls and their results", partial(anthropic_results, 9000), (400,)),
    Row("Anthropic: 1 MB of text to count", lambda: anthropic("/v1/messages/count_tokens", system=_WORDS * 13_000),
        (200,)),
    Row("responses: 10,000 items", partial(response_items, 10_000), (400,)),
    Row("responses: 60,000 items", partial(response_items, 60_000), (400,)),
    Row("KServe generate: 3.9 MB of text", lambda: kserve_generate(text_input="word " * 780_000), (400,)),
    Row("KServe generate: 250,000 parameters",
        lambda: kserve_generate(parameters={f"p{number}": 1 for number in range(250_000)}), (400,)),
    Row("KServe infer: 100,000 texts", partial(kserve_texts, 100_000), (400,)),
    Row("KServe ModelInfer: 100,000 texts", partial(kserve_contents, 100_000), (400,)),
    Row("gRPC Generate: 520,000 ids", partial(generate_ids, 520_000), (400,)),
    Row("gRPC Generate: 900,000 ids", partial(generate_ids, 900_000), (400,)),
    Row("gRPC Generate: 400,000 allowed ids", lambda: generate_ids(5, allowed_token_ids=range(400_000)), (400,)),
    Row("gRPC Generate: 100,000 stop strings", lambda: generate_ids(5, stop_strings=["stop"] * 100_000), (400,)),
    Row("gRPC Generate: 100,000 biases",
        lambda: generate_ids(5, sampling={"logit_bias": [{"token_id": _ID, "bias": 1.0}] * 100_000}), (400,)),
    Row("gRPC Chat: 10,000 messages", partial(chat_messages, 10_000), (400,)),
    Row("gRPC Chat: 200,000 messages", partial(chat_messages, 200_000), (400,)),
    Row("gRPC Embed: 256 inputs of 2,000 ids", partial(embed_ids, 256, 2000), _BUSY, takes_all_places=True),
    Row("gRPC Embed: 100,000 inputs", partial(embed_ids, 100_000, 4), (400,)),
    Row("gRPC Score: 2,048 texts", partial(typed_scores, 2048), _BUSY, takes_all_places=True),
    Row("gRPC Tokenize: 1 MB of text",
        lambda: typed("Tokenize", inference_pb2.TokenizeRequest(model=MODEL, text="word " * 200_000)), (200,)),
    Row("gRPC Detokenize: 500,000 ids",
        lambda: typed("Detokenize", inference_pb2.DetokenizeRequest(model=MODEL, token_ids=[_ID] * 500_000)), (200,)),
    Row("gRPC: a message of 5 MB",
        lambda: typed("Generate", inference_pb2.GenerateRequest(model=MODEL, text="a" * 5_000_000)), (413,)),
)  # fmt: skip
