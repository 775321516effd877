"""Tensors of the Open Inference Protocol. Each input tensor has one element, and sets the field of KserveGenerateBody
that has the same name."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from services.router.apis.kserve.generation.body import KserveGenerateBody, KserveGenerateParameters, TextRequest
from services.router.errors import invalid
from services.router.http import dump, parse_body

TEXT_INPUT = "text_input"
TEXT_OUTPUT = "text_output"
# Maximum number of tensors in a request, to limit the work of reading it. Valid requests have fewer tensors, because
# there are fewer fields that a tensor can set.
MAX_TENSORS = 64
_MAX_DIMENSIONS = 8
# Binary format of each datatype's element, for `struct`.
_PACKED = {
    "BOOL": "<?", "INT8": "<b", "INT16": "<h", "INT32": "<i", "INT64": "<q", "UINT8": "<B", "UINT16": "<H",
    "UINT32": "<I", "UINT64": "<Q", "FP32": "<f", "FP64": "<d",
}  # fmt: skip
# Datatype of the input tensor for a field, by the field's Python type; BYTES for all other types.
_DATATYPES: dict[Any, str] = {bool | None: "BOOL", int | None: "INT32", float | None: "FP32"}


def input_tensors() -> list[tuple[str, str]]:
    """Returns name and datatype of each input tensor. All but the text are optional."""
    fields = KserveGenerateParameters.model_fields.items()
    return [(TEXT_INPUT, "BYTES"), *((name, _DATATYPES.get(field.annotation, "BYTES")) for name, field in fields)]


def check_shape(name: str, shape: Sequence[int], path: str) -> None:
    """Raises ApiError if a tensor does not have exactly one element, or has more than _MAX_DIMENSIONS dimensions."""
    # A shape in a gRPC request can have half a million dimensions, so only the first dimensions are checked.
    shown = list(shape[: _MAX_DIMENSIONS + 1])
    if len(shown) > _MAX_DIMENSIONS or any(size != 1 for size in shown):
        message = f"Invalid '{path}': the tensor '{name[:64]}' has shape {str(shown)[:64]}, but must have one element."
        raise invalid(message, path, "invalid_value")


def packed_value(name: str, datatype: str, data: bytes, path: str) -> Any:
    """Decodes a tensor's element from its binary form. `path`: path of the tensor in the request, for error messages.
    Raises ApiError."""
    if datatype == "BYTES":
        if len(data) >= 4 and struct.unpack_from("<I", data)[0] == len(data) - 4:
            return text_of(data[4:], path)
    elif datatype in _PACKED and struct.calcsize(_PACKED[datatype]) == len(data):
        return checked_number(struct.unpack(_PACKED[datatype], data)[0], path)
    message = f"Invalid '{path}': tensor '{name[:64]}' has {len(data)} bytes, not one element of {datatype[:16]!r}."
    raise invalid(message, path, "invalid_value")


def checked_number(value: Any, path: str) -> Any:
    """Returns the value. Raises ApiError for infinity and NaN, which JSON has no numbers for."""
    if isinstance(value, float) and not math.isfinite(value):
        raise invalid(f"Invalid '{path}': expected a finite number, but got {value}.", path, "invalid_value")
    return value


def packed_text(text: str) -> bytes:
    """Returns a text's binary form: its length in four bytes, and its UTF-8 bytes."""
    data = text.encode()
    return struct.pack("<I", len(data)) + data


def text_of(data: bytes, path: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise invalid(f"Invalid '{path}': the text is not valid UTF-8.", path, "invalid_value") from None


def check_output(name: str, path: str) -> None:
    """Raises ApiError if the requested output tensor does not exist."""
    if name != TEXT_OUTPUT:
        message = f"Invalid '{path}': there is no output '{name[:64]}'. The only output is '{TEXT_OUTPUT}'."
        raise invalid(message, path, "invalid_value")


def check_new(name: str, values: Mapping[str, Any], path: str) -> None:
    """Raises ApiError if an earlier tensor or parameter has the name, because only one of them could have an effect."""
    if name in values:
        message = f"Invalid '{path}': another tensor or parameter has the name '{name[:64]}', too."
        raise invalid(message, path, "invalid_value")


def request_of(values: Mapping[str, Any], request_id: str) -> TextRequest:
    """Returns the request that the tensors describe. `values`: the element of each tensor, by the tensor's name. Raises
    ApiError if a value is missing or invalid."""
    for name, value in values.items():
        entries = value if isinstance(value, list) else (value,)
        if any(isinstance(entry, list | dict) for entry in entries):
            raise invalid(f"Invalid '{name}': expected a value or an array of values.", name, "invalid_type")
    asked = parse_body(dump(dict(values)), KserveGenerateBody).asked()
    if asked.stream:
        raise invalid("Invalid 'stream': inference with tensors does not stream.", "stream")
    return replace(asked, id=request_id or None)
