"""The body of /v2/models/NAME/infer: tensors as JSON or, with the binary tensor data extension, as bytes after the
JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import Field

from services.router.apis.kserve.generation.body import TextRequest
from services.router.apis.kserve.generation.tensors import (
    MAX_TENSORS,
    check_new,
    check_output,
    check_shape,
    packed_value,
    request_of,
)
from services.router.errors import invalid
from services.router.http import Body

# Header with the length of the JSON that precedes binary tensors.
HEADER_LENGTH = "inference-header-content-length"
# Maximum number of digits in the header. No body has ten billion bytes, so ten digits are enough. For thousands of
# digits, int() would raise an exception.
_MAX_LENGTH_DIGITS = 10
_BINARY_SIZE = "binary_data_size"


@dataclass(frozen=True, slots=True)
class BodyParts:
    json: bytes
    binary: bytes


def parts_of(data: bytes, json_length: str) -> BodyParts:
    """Splits a body. `json_length`: value of the header with the JSON's length; if empty, the whole body is JSON.
    Raises ApiError."""
    if not json_length:
        return BodyParts(data, b"")
    is_number = json_length.isascii() and json_length.isdecimal() and len(json_length) <= _MAX_LENGTH_DIGITS
    if not is_number or int(json_length) > len(data):
        message = (
            f"Invalid header '{HEADER_LENGTH}': expected a number of at most {len(data)} bytes, the size of the body, "
            f"but got {json_length[:32]!r}."
        )
        raise invalid(message, HEADER_LENGTH, "invalid_value")
    return BodyParts(data[: int(json_length)], data[int(json_length) :])


class InputTensor(Body):
    name: str = Field(min_length=1, description="`text_input`, or a field of KserveGenerateParameters.")
    datatype: str = Field(description="BOOL, INT8 to INT64, UINT8 to UINT64, FP32, FP64 or BYTES.")
    shape: list[int] = Field(max_length=8, description="Dimensions of the tensor; their product must be 1.")
    parameters: dict[str, Any] | None = Field(
        None, description="`binary_data_size`: number of bytes of the element after the JSON."
    )
    data: Any = Field(None, description="The element, as a flat array or nested as deep as the shape.")


class RequestedOutput(Body):
    name: str = Field(description="`text_output`.")
    parameters: dict[str, Any] | None = Field(
        None, description="`binary_data`: whether the output is sent as bytes after the JSON."
    )


class InferBody(Body):
    id: str | None = Field(None, description="Request id; repeated in the answer.")
    inputs: list[InputTensor] = Field(
        min_length=1,
        max_length=MAX_TENSORS,
        description="The tensor `text_input`, and tensors with generation parameters.",
    )
    outputs: list[RequestedOutput] | None = Field(
        None, max_length=MAX_TENSORS, description="Outputs to return. Default: `text_output`."
    )
    parameters: dict[str, Any] | None = Field(
        None,
        max_length=MAX_TENSORS,
        description=(
            "Generation parameters, instead of tensors with these names; `binary_data_output`: whether outputs "
            "are sent as bytes after the JSON."
        ),
    )

    @property
    def wants_bytes(self) -> bool:
        """Whether the answer's text is sent as binary data after the JSON."""
        wanted = (self.parameters or {}).get("binary_data_output")
        for output in self.outputs or ():
            wanted = (output.parameters or {}).get("binary_data", wanted)
        return wanted is True

    def asked(self, binary: bytes) -> TextRequest:
        """Converts the body to a TextRequest. `binary`: the data after the JSON. Raises ApiError."""
        for index, output in enumerate(self.outputs or ()):
            check_output(output.name, f"outputs[{index}].name")
        values = {name: value for name, value in (self.parameters or {}).items() if name != "binary_data_output"}
        start = 0
        for index, tensor in enumerate(self.inputs):
            path = f"inputs[{index}]"
            check_shape(tensor.name, tensor.shape, f"{path}.shape")
            check_new(tensor.name, values, f"{path}.name")
            size = (tensor.parameters or {}).get(_BINARY_SIZE)
            if size is None:
                values[tensor.name] = _element(tensor.data, f"{path}.data")
                continue
            param = f"{path}.parameters.{_BINARY_SIZE}"
            if not isinstance(size, int) or not 0 <= size <= len(binary) - start:
                message = f"Invalid '{param}': the data after the JSON does not have this number of bytes."
                raise invalid(message, param, "invalid_value")
            values[tensor.name] = packed_value(tensor.name, tensor.datatype, binary[start : start + size], path)
            start += size
        return request_of(values, self.id or "")


def _element(data: Any, path: str) -> Any:
    for _ in range(8):
        if not isinstance(data, list) or len(data) != 1:
            break
        data = data[0]
    if data is None or isinstance(data, list | dict):
        raise invalid(f"Invalid '{path}': expected one element.", path, "invalid_value")
    return data
