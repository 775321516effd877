"""Generation over gRPC: reads a ModelInferRequest and builds the ModelInferResponse."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from quire.kserve.v1 import open_inference_pb2 as pb
from services.router.apis.kserve.generation.body import TextRequest
from services.router.apis.kserve.generation.tensors import (
    MAX_TENSORS,
    TEXT_OUTPUT,
    check_new,
    check_output,
    check_shape,
    checked_number,
    input_tensors,
    packed_text,
    packed_value,
    request_of,
    text_of,
)
from services.router.apis.kserve.generation.text import TextGeneration
from services.router.errors import ApiError, invalid, too_many
from services.router.rpc import Prepared

# Names of the tensors that exist, and the field of `contents` that has the elements of each datatype.
_NAMES = frozenset(name for name, _ in input_tensors())
_CONTENTS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}


@dataclass(frozen=True, slots=True)
class GrpcGeneration:
    """Generates text from the tensors of KServe's gRPC requests. Implements TensorGeneration (grpc_servicer.py)."""

    generation: TextGeneration

    @property
    def inputs(self) -> list[tuple[str, str]]:
        return input_tensors()

    @property
    def output(self) -> str:
        return TEXT_OUTPUT

    async def infer(self, request: pb.ModelInferRequest, context: Any) -> Prepared:
        wanted = await self.generation.read(request.ByteSize(), lambda: asked(request))
        paths = paths_of(request)
        # Copy these fields: `answer` must not refer to the request, which can be large.
        name, request_id, is_raw = request.model_name, request.id, bool(request.raw_input_contents)

        async def answer(text: str, version: str) -> pb.ModelInferResponse:
            return response(name, version, request_id, text, is_raw=is_raw)

        try:
            return await self.generation.text(wanted, name, request.model_version, context, answer)
        except ApiError as error:
            raise in_request(error, paths) from None


def paths_of(request: pb.ModelInferRequest) -> dict[str, str]:
    """Returns the path of each tensor and parameter in the request, by its name."""
    paths = {key: f"parameters[{key}]" for key in request.parameters}
    return paths | {tensor.name: f"inputs[{index}]" for index, tensor in enumerate(request.inputs)}


def in_request(error: ApiError, paths: Mapping[str, str]) -> ApiError:
    """Returns a copy of the error that names the tensor or parameter by its path in the request. A field that is in
    neither comes from the JSON of `sampling_parameters`. Without this parameter, it is missing from the inputs."""
    param = error.param or ""
    name = param.partition(".")[0].partition("[")[0]
    path = paths.get(param) or paths.get(name)
    if path is None and name in _NAMES:
        path = paths.get("sampling_parameters", "inputs")
    return replace(error, param=path or error.param)


def asked(request: pb.ModelInferRequest) -> TextRequest:
    """Converts a request to a TextRequest. Raises ApiError, which names the tensor or parameter by its path in the
    request."""
    for name, entries in (("inputs", request.inputs), ("outputs", request.outputs), ("parameters", request.parameters)):
        if len(entries) > MAX_TENSORS:
            raise too_many(name, MAX_TENSORS, len(entries))
    if request.raw_input_contents and len(request.raw_input_contents) != len(request.inputs):
        param = "raw_input_contents"
        raise invalid(f"Invalid '{param}': expected one element for each tensor in 'inputs'.", param, "invalid_value")
    for index, output in enumerate(request.outputs):
        check_output(output.name, f"outputs[{index}].name")
    values: dict[str, Any] = {}
    for key, parameter in request.parameters.items():
        kind = parameter.WhichOneof("parameter_choice")
        values[key] = None if kind is None else checked_number(getattr(parameter, kind), f"parameters[{key}]")
    for index, tensor in enumerate(request.inputs):
        path = f"inputs[{index}]"
        check_shape(tensor.name, tensor.shape, f"{path}.shape")
        check_new(tensor.name, values, f"{path}.name")
        raw = request.raw_input_contents[index] if request.raw_input_contents else None
        values[tensor.name] = _value(tensor, raw, path)
    try:
        return request_of(values, request.id)
    except ApiError as error:
        raise in_request(error, paths_of(request)) from None


def response(model: str, version: str, request_id: str, text: str, *, is_raw: bool) -> pb.ModelInferResponse:
    """Returns the answer. `model`: the model's name in the request. `is_raw`: whether the request has raw tensors; then
    the answer's tensor is raw, too."""
    answer = pb.ModelInferResponse(model_name=model, model_version=version, id=request_id)
    output = answer.outputs.add(name=TEXT_OUTPUT, datatype="BYTES", shape=[1])
    if is_raw:
        answer.raw_output_contents.append(packed_text(text))
    else:
        output.contents.bytes_contents.append(text.encode())
    return answer


def _value(tensor: pb.ModelInferRequest.InferInputTensor, raw: bytes | None, path: str) -> Any:
    if raw is not None:
        return packed_value(tensor.name, tensor.datatype, raw, path)
    given = tensor.contents.ListFields()
    param = f"{path}.contents"
    if len(given) != 1 or len(given[0][1]) != 1:
        raise invalid(f"Invalid '{param}': expected one element.", param, "invalid_value")
    ((field, (value,)),) = given
    expected = _CONTENTS.get(tensor.datatype, field.name)
    if field.name != expected:
        message = f"Invalid '{param}': a tensor of {tensor.datatype} has its element in {expected}."
        raise invalid(message, param, "invalid_value")
    if isinstance(value, bytes):
        return text_of(value, f"{param}.bytes_contents[0]")
    return checked_number(value, f"{param}.{field.name}[0]")
