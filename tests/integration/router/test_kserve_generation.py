"""Text by the Open Inference Protocol: generate and generate_stream as Triton has them, infer over HTTP and gRPC."""

from __future__ import annotations

import json
import math
import struct
import threading
from typing import Any

import grpc
import pytest
from google.api.httpbody_pb2 import HttpBody

from quire.kserve.v1 import kserve_pb2, kserve_pb2_grpc, open_inference_pb2, open_inference_pb2_grpc
from services.router.apis.kserve.generation.body import KserveGenerateParameters
from services.router.apis.kserve.generation.tensors import check_shape, request_of
from services.router.errors import ApiError
from services.router.limits.large_bodies import LARGE_BODY_BYTES
from services.router.text.tokenizer import Tokenizer
from tests.integration.router.conftest import (
    HTTP_STATUS,
    MODEL,
    Api,
    Reply,
    StartRouter,
    answer_text,
    checked,
    fake_scheduler,
)
from tests.integration.router.small_tokenizers import byte_level
from tests.integration.router.test_status_details import details_of

ANSWER = "one, two, three"
SERVICE = "kserve.v1.KserveService"


async def post(api: Api, method: str, body: Any, *, model: str = MODEL, header: str = "") -> Reply:
    """`body`: bytes as they are, anything else as JSON. `header`: where the JSON ends. Holds the answer against our
    document."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request_type = kserve_pb2.InferRequest if method == "Infer" else kserve_pb2.GenerateRequest
    metadata = [("inference-header-content-length", header)] if header else []
    call: Any = getattr(kserve_pb2_grpc.KserveServiceStub(api.channel), method)
    replying = call(request_type(model=model, body=HttpBody(data=data)), metadata=metadata)
    replies = [await replying] if method == "Infer" else [reply async for reply in replying]
    reply = Reply(replies[0].content_type, [reply.data for reply in replies])
    return checked(reply, method, service=SERVICE)


async def refused(api: Api, method: str, body: Any, **options: Any) -> tuple[grpc.StatusCode, str]:
    """The status and text of the error that this must be answered with."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await post(api, method, body, **options)
    told = dict(caught.value.trailing_metadata() or ())["quire-error"]
    checked(Reply("application/json", [str(told).encode()]), method, HTTP_STATUS[caught.value.code()], SERVICE)
    error = json.loads(told)
    assert list(error) == ["error"]
    return caught.value.code(), error["error"]


def events(reply: Reply) -> list[Any]:
    assert reply.content_type == "text/event-stream"
    lines = b"".join(reply.messages).decode().removesuffix("\n\n").split("\n\n")
    return [json.loads(line.removeprefix("data: ")) for line in lines]


@pytest.fixture
async def api(start_router: StartRouter) -> Api:
    api: Api = await start_router(fake_scheduler(answer_text(ANSWER)))
    return api


async def test_a_text_is_continued(api: Api) -> None:
    head = {"model_name": MODEL, "model_version": ""}
    reply = await post(api, "Generate", {"text_input": "Once", "max_tokens": 50})
    assert reply.json == {**head, "text_output": ANSWER}
    body = {"id": "7", "text_input": "Once", "parameters": {"exclude_input_in_output": False, "stop": ", th"}}
    assert (await post(api, "Generate", body)).json == {**head, "id": "7", "text_output": "Onceone, two"}
    streamed = events(await post(api, "GenerateStream", body))
    assert all(event.items() >= {**head, "id": "7"}.items() for event in streamed)
    assert "".join(event["text_output"] for event in streamed) == "Onceone, two"
    assert len(streamed) > 1
    (whole,) = events(await post(api, "GenerateStream", {**body, "stream": False}))
    assert whole["text_output"] == "Onceone, two"


async def test_a_stream_without_text_has_an_event(start_router: StartRouter) -> None:
    api = await start_router(fake_scheduler(answer_text("")))
    assert [event["text_output"] for event in events(await post(api, "GenerateStream", {"text_input": "x"}))] == [""]


async def test_settings_reach_the_scheduler(start_router: StartRouter) -> None:
    scheduler = fake_scheduler(answer_text(ANSWER))
    api = await start_router(scheduler)
    # The example of TensorRT-LLM's documents.
    await post(
        api,
        "Generate",
        {"text_input": "x", "max_tokens": 20, "bad_words": "", "stop_words": "", "pad_id": 2, "end_id": 3},
    )
    assert (scheduler.submits[0].stop.max_tokens, list(scheduler.submits[0].stop.stop_token_ids)) == (20, [3])
    own = {"temperature": 0.5, "parameters": {"temperature": 1, "top_k": 3, "random_seed": 5}}
    # The one of vLLM's client for Triton.
    own["sampling_parameters"] = json.dumps({"temperature": "0.1", "top_p": "0.95", "max_tokens": 7})
    await post(api, "Generate", {"text_input": "x", **own})
    submit = scheduler.submits[1]
    sampling = submit.sampling
    assert (sampling.temperature, sampling.top_k, sampling.seed, submit.stop.max_tokens) == (0.5, 3, 5, 7)
    assert sampling.top_p == pytest.approx(0.95)


async def test_settings_are_read_once_and_beside_the_event_loop(
    start_router: StartRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = await start_router(fake_scheduler(answer_text(ANSWER), max_model_len=4 * LARGE_BODY_BYTES))
    threads, turns = [], []
    merged = KserveGenerateParameters.merged

    def seen(self: KserveGenerateParameters) -> KserveGenerateParameters:
        threads.append(threading.current_thread())
        turns.append(api.router.threads.large_bodies.conversion.locked())
        return merged(self)

    monkeypatch.setattr(KserveGenerateParameters, "merged", seen)
    text, settings = "a" * 2 * LARGE_BODY_BYTES, json.dumps({"max_tokens": 50})
    for method in ("Generate", "GenerateStream"):
        await post(api, method, {"text_input": text, "sampling_parameters": settings})
    tensors = [tensor("text_input", "BYTES", [text]), tensor("sampling_parameters", "BYTES", [settings])]
    await post(api, "Infer", {"inputs": tensors})
    inputs = [
        Input(name=name, datatype="BYTES", shape=[1], contents=Contents(bytes_contents=[value.encode()]))
        for name, value in (("text_input", text), ("sampling_parameters", settings))
    ]
    await infer(api, inputs=inputs)
    assert len(threads) == 4
    assert all(turns)
    assert threading.main_thread() not in threads


@pytest.mark.parametrize("method", ["Generate", "GenerateStream"])
@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({}, "Missing required parameter: 'text_input'."),
        ({"text_input": "x", "max_tokens": 0}, "Invalid 'max_tokens'"),
        ({"text_input": "x", "max_tokens": 10**6}, "'max_tokens' is too large"),
        ({"text_input": "x", "num_beams": 2}, "'num_beams' is not supported by this server."),
        ({"text_input": "x", "parameters": {"nothing": 1}}, "'nothing' is not supported by this server."),
        ({"text_input": "x", "sampling_parameters": "["}, "Invalid 'sampling_parameters'"),
        (
            {"text_input": "x", "sampling_parameters": '{"top_p": 7}'},
            "Invalid 'sampling_parameters.top_p': integer above maximum value. Expected a value <= 1, but got 7 ",
        ),
        (
            {"text_input": "x", "sampling_parameters": '{"stop": [1]}'},
            "Invalid type for 'sampling_parameters.stop[0]': expected a string, but got an integer instead.",
        ),
        ({"text_input": "x", "sampling_parameters": "[" * 8193}, "Invalid 'sampling_parameters': String should have"),
        (
            {"text_input": "x", "parameters": {"sampling_parameters": "[" * 8193}},
            "Invalid 'parameters.sampling_parameters': String should have",
        ),
        ({"text_input": "x", "stop": ["a"] * 17}, "Invalid 'stop': array too long. Expected at most 16"),
        ({"text_input": "x", "stop_words": [""] * 17}, "Invalid 'stop_words': array too long."),
        ({"text_input": "x", "stop": ["a"] * 9, "stop_words": ["b"] * 9}, "Invalid 'stop': at most 16 stop strings"),
        ({"text_input": "x", "bad_words": ["a"] * 1025}, "Invalid 'bad_words': array too long."),
        ({"text_input": "x", "temperature": 9}, "Invalid 'temperature'"),
        (b"{", "We could not parse the JSON body"),
    ],
)
async def test_what_is_wrong_is_told_in_the_protocol_s_shape(api: Api, method: str, body: Any, text: str) -> None:
    status, error = await refused(api, method, body)
    assert status is grpc.StatusCode.INVALID_ARGUMENT
    assert error.startswith(text)


@pytest.mark.parametrize("value", [{}, [[]], [{}], [1, [2]]])
def test_a_parameter_of_inference_is_a_value_or_an_array_of_values(value: Any) -> None:
    with pytest.raises(ApiError, match="Invalid 'x': expected a value or an array of values") as caught:
        request_of({"text_input": "a", "x": value}, "")
    assert caught.value.param == "x"


async def test_models_and_versions_that_there_are_not(api: Api) -> None:
    body = {"text_input": "x"}
    assert (await refused(api, "Generate", body, model="none"))[0] is grpc.StatusCode.NOT_FOUND
    version = await refused(api, "Generate", body, model=f"{MODEL}/versions/1")
    message = f"The model `{MODEL}@1` does not exist. Served here: `{MODEL}`."
    assert version == (grpc.StatusCode.NOT_FOUND, message)
    assert (await refused(api, "Generate", {**body, "stream": True}))[0] is grpc.StatusCode.INVALID_ARGUMENT


def tensor(name: str, datatype: str, data: Any, shape: tuple[int, ...] = (1,)) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": list(shape), "data": data}


async def test_tensors_of_json_and_of_bytes_mean_the_same(api: Api) -> None:
    output = {"name": "text_output", "datatype": "BYTES", "shape": [1], "data": ["one, two"]}
    expected = {"model_name": MODEL, "model_version": "", "id": "i", "outputs": [output]}
    inputs = [tensor("text_input", "BYTES", [["Once"]], (1, 1)), tensor("stop", "BYTES", [", th"])]
    body = {
        "id": "i",
        "inputs": inputs,
        "outputs": [{"name": "text_output"}],
    }
    assert (await post(api, "Infer", body)).json == expected
    pieces = [struct.pack("<I", 4) + b"Once", struct.pack("<I", 4) + b", th"]
    for given, piece in zip(inputs, pieces, strict=True):
        del given["data"]
        given["parameters"] = {"binary_data_size": len(piece)}
    head = json.dumps(body).encode()
    assert (await post(api, "Infer", head + b"".join(pieces), header=str(len(head)))).json == expected
    status, error = await refused(api, "Infer", head + pieces[0], header=str(len(head)))
    assert (status, "inputs[1].parameters.binary_data_size" in error) == (grpc.StatusCode.INVALID_ARGUMENT, True)


@pytest.mark.parametrize("length", ["10000", "-1", "x", "0" * 5000], ids=len)
async def test_a_header_that_is_no_place_in_the_body_is_refused(api: Api, length: str) -> None:
    head = json.dumps({"inputs": [tensor("text_input", "BYTES", ["Once"])]}).encode()
    status, error = await refused(api, "Infer", head, header=length)
    assert status is grpc.StatusCode.INVALID_ARGUMENT
    assert error.startswith("Invalid header 'inference-header-content-length'")


async def test_what_comes_after_the_json_counts_as_a_large_body(
    start_router: StartRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = []
    encode = Tokenizer.encode

    async def seen(self: Tokenizer, *arguments: Any) -> list[list[int]]:
        held.append(self.threads.large_bodies.num_bytes)
        return await encode(self, *arguments)

    monkeypatch.setattr(Tokenizer, "encode", seen)
    api = await start_router(fake_scheduler(answer_text(ANSWER), max_model_len=4 * LARGE_BODY_BYTES))
    text = b"a" * 2 * LARGE_BODY_BYTES
    piece = struct.pack("<I", len(text)) + text
    given = {"name": "text_input", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": len(piece)}}
    head = json.dumps({"inputs": [given]}).encode()
    await post(api, "Infer", head + piece, header=str(len(head)))
    assert held == [len(head + piece)]
    assert api.router.threads.large_bodies.num_bytes == 0


async def test_an_answer_comes_as_bytes_where_that_is_asked_for(api: Api) -> None:
    """tritonclient asks for them by default, and its users decode what they get."""
    inputs = [tensor("text_input", "BYTES", ["Once"])]
    for asked in (
        {"parameters": {"binary_data_output": True}},
        {"outputs": [{"name": "text_output", "parameters": {"binary_data": True}}]},
    ):
        stub: Any = kserve_pb2_grpc.KserveServiceStub(api.channel)
        data = json.dumps({"inputs": inputs, **asked}).encode()
        call = stub.Infer(kserve_pb2.InferRequest(model=MODEL, body=HttpBody(data=data)))
        reply = await call
        head = int(dict(await call.initial_metadata())["inference-header-content-length"])
        (output,) = json.loads(reply.data[:head])["outputs"]
        assert reply.data[head:] == struct.pack("<I", len(ANSWER)) + ANSWER.encode()
        assert output["parameters"] == {"binary_data_size": len(reply.data) - head}
        assert ("data" in output, reply.content_type) == (False, "application/octet-stream")


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        ([], "Invalid 'inputs'"),
        ([tensor("max_tokens", "INT32", [1])], "Missing required parameter: 'text_input'."),
        ([tensor("text_input", "BYTES", ["a", "b"], (2,))], "Invalid 'inputs[0].shape'"),
        ([tensor("text_input", "BYTES", ["a", "b"])], "Invalid 'inputs[0].data'"),
    ],
)
async def test_tensors_that_do_not_fit_are_refused(api: Api, inputs: Any, text: str) -> None:
    status, error = await refused(api, "Infer", {"inputs": inputs})
    assert status is grpc.StatusCode.INVALID_ARGUMENT
    assert error.startswith(text)


def test_a_shape_is_looked_at_up_to_its_first_dimensions() -> None:
    class Dimensions(list[int]):
        def __repr__(self) -> str:
            raise AssertionError("all of it is written")

    with pytest.raises(ApiError, match="has shape"):
        check_shape("stop", Dimensions([1] * 9), "inputs[0].shape")


Request = open_inference_pb2.ModelInferRequest
Input = Request.InferInputTensor
Contents = open_inference_pb2.InferTensorContents
Parameter = open_inference_pb2.InferParameter
TEXT = Input(name="text_input", datatype="BYTES", shape=[1], contents=Contents(bytes_contents=[b"x"]))
LONG_TEXT = Input(name="text_input", shape=[1], contents=Contents(bytes_contents=[b"x " * 20_000]))


async def infer(api: Api, **fields: Any) -> Any:
    stub: Any = open_inference_pb2_grpc.GRPCInferenceServiceStub(api.channel)
    return await stub.ModelInfer(Request(**({"model_name": MODEL} | fields)))


async def test_tensors_over_grpc(start_router: StartRouter) -> None:
    scheduler = fake_scheduler(answer_text(ANSWER))
    api = await start_router(scheduler)
    text = Input(name="text_input", datatype="BYTES", shape=[1, 1], contents=Contents(bytes_contents=[b"Once"]))
    budget = Input(name="max_tokens", datatype="INT32", shape=[1], contents=Contents(int_contents=[50]))
    parameter = open_inference_pb2.InferParameter(double_param=0.5)
    answer = await infer(api, id="i", inputs=[text, budget], parameters={"temperature": parameter})
    (output,) = answer.outputs
    assert (answer.model_name, answer.id, output.name, output.datatype) == (MODEL, "i", "text_output", "BYTES")
    assert (list(output.shape), list(output.contents.bytes_contents)) == ([1], [ANSWER.encode()])
    raw = [struct.pack("<I", 4) + b"Once", struct.pack("<i", 50)]
    for given in (text, budget):
        given.ClearField("contents")
    answer = await infer(api, inputs=[text, budget], raw_input_contents=raw)
    assert list(answer.raw_output_contents) == [struct.pack("<I", len(ANSWER)) + ANSWER.encode()]
    assert [submit.stop.max_tokens for submit in scheduler.submits] == [50, 50]
    assert scheduler.submits[0].sampling.temperature == 0.5
    assert scheduler.submits[0].prompt_token_ids == scheduler.submits[1].prompt_token_ids
    assert len(scheduler.submits[0].prompt_token_ids) == 4 * len(byte_level().encode("Once").ids)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({}, "inputs"),
        ({"inputs": [Input(name="text_input", datatype="BYTES", shape=[2])]}, "inputs[0].shape"),
        ({"inputs": [Input(name="text_input", datatype="BYTES", shape=[1] * 9)]}, "inputs[0].shape"),
        ({"inputs": [Input(name="text_input", datatype="BYTES", shape=[1])]}, "inputs[0].contents"),
        (
            {
                "inputs": [Input(name="text_input", shape=[1], contents=Contents(bytes_contents=[b"x"]))],
                "parameters": {"sampling_parameters": open_inference_pb2.InferParameter(string_param="[")},
            },
            "parameters[sampling_parameters]",
        ),
        (
            {"inputs": [Input(name="text_input", shape=[1], contents=Contents(bytes_contents=[b"\xff"]))]},
            "inputs[0].contents.bytes_contents[0]",
        ),
        (
            {"inputs": [Input(name="text_input", datatype="BYTES", shape=[1])], "raw_input_contents": [b"x"]},
            "inputs[0]",
        ),
        ({"inputs": [Input(name="text_input", shape=[1])], "raw_input_contents": [b"x", b"y"]}, "raw_input_contents"),
        ({"outputs": [Request.InferRequestedOutputTensor(name="logits")]}, "outputs[0].name"),
        (
            {
                "inputs": [Input(name="text_input", shape=[1], contents=Contents(bytes_contents=[b"x"]))],
                "parameters": {"max_tokens": open_inference_pb2.InferParameter(int64_param=0)},
            },
            "parameters[max_tokens]",
        ),
        (
            {
                "inputs": [
                    Input(name="text_input", shape=[1], contents=Contents(bytes_contents=[b"x"])),
                    Input(name="temperature", shape=[1], contents=Contents(fp32_contents=[9])),
                ],
            },
            "inputs[1]",
        ),
        ({"inputs": [TEXT], "parameters": {"max_tokens": Parameter(int64_param=10**6)}}, "parameters[max_tokens]"),
        ({"inputs": [LONG_TEXT]}, "inputs[0]"),
        (
            {"inputs": [TEXT], "parameters": {"sampling_parameters": Parameter(string_param='{"top_p": 7}')}},
            "parameters[sampling_parameters]",
        ),
        ({"inputs": [TEXT], "model_name": "none"}, "model_name"),
        ({"inputs": [TEXT], "parameters": {"top_p": Parameter(double_param=math.nan)}}, "parameters[top_p]"),
        (
            {"inputs": [TEXT, Input(name="top_p", shape=[1], contents=Contents(fp32_contents=[math.inf]))]},
            "inputs[1].contents.fp32_contents[0]",
        ),
        ({"inputs": [TEXT, TEXT]}, "inputs[1].name"),
        (
            {
                "inputs": [TEXT, Input(name="top_k", shape=[1], contents=Contents(int_contents=[1]))],
                "parameters": {"top_k": Parameter(int64_param=2)},
            },
            "inputs[1].name",
        ),
        (
            {
                "inputs": [
                    TEXT,
                    Input(name="top_k", datatype="INT32", shape=[1], contents=Contents(bytes_contents=[b"1"])),
                ]
            },
            "inputs[1].contents",
        ),
        ({"inputs": [TEXT], "parameters": {"stream": Parameter(bool_param=True)}}, "parameters[stream]"),
        (
            {"inputs": [TEXT], "parameters": {"sampling_parameters": Parameter(string_param='{"stream": true}')}},
            "parameters[sampling_parameters]",
        ),
        ({"inputs": [TEXT], "parameters": {"a.b": Parameter(int64_param=1)}}, "parameters[a.b]"),
        ({"inputs": [TEXT, Input(name="a[1]", shape=[1], contents=Contents(int_contents=[1]))]}, "inputs[1]"),
    ],
)
async def test_errors_over_grpc_name_the_tensor(api: Api, fields: Any, field: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await infer(api, **fields)
    assert caught.value.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND)
    assert json.loads(dict(caught.value.trailing_metadata())["quire-error"])["error"]["param"] == field
    if caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT:
        (violation,) = details_of(caught.value)["BadRequest"].field_violations
        assert violation.field == field
