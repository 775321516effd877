"""Tensors of the Open Inference Protocol: a single element each, which is a field of a KserveGenerateBody."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from services.router.apis.kserve.generation.body import KserveGenerateBody, KserveGenerateParameters, TextRequest
from services.router.errors import invalid
from services.router.http import dump, parse_body

TEXT_INPUT = "text_input"
TEXT_OUTPUT = "text_output"
# Of a request, for the bound of what is read; every tensor sets another field.
MAX_TENSORS = 64
_MAX_DIMENSIONS = 8
# Of each datatype, how its element is packed.
_PACKED = {
    "BOOL": "<?", "INT8": "<b", "INT16": "<h", "INT32": "<i", "INT64": "<q", "UINT8": "<B", "UINT16": "<H",
    "UINT32": "<I", "UINT64": "<Q", "FP32": "<f", "FP64": "<d",
}  # fmt: skip
# Of each type of a field; texts are BYTES.
_DATATYPES: dict[Any, str] = {bool | None: "BOOL", int | None: "INT32", float | None: "FP32"}


def input_tensors() -> list[tuple[str, str]]:
    """The name and datatype of each tensor that a model takes; all but the text may be left out."""
    fields = KserveGenerateParameters.model_fields.items()
    return [(TEXT_INPUT, "BYTES"), *((name, _DATATYPES.get(field.annotation, "BYTES")) for name, field in fields)]


def check_shape(name: str, shape: Sequence[int], path: str) -> None:
    """Raises ApiError for a tensor of more or fewer elements than one."""
    # A shape that a client sends over gRPC may have half a million dimensions.
    shown = list(shape[: _MAX_DIMENSIONS + 1])
    if len(shown) > _MAX_DIMENSIONS or any(size != 1 for size in shown):
        message = f"Invalid '{path}': the tensor '{name[:64]}' has shape {str(shown)[:64]}, and must have one element."
        raise invalid(message, path, "invalid_value")


def packed_value(name: str, datatype: str, data: bytes, path: str) -> Any:
    """The element of a tensor from its binary form. Raises ApiError."""
    if datatype == "BYTES":
        if len(data) >= 4 and struct.unpack_from("<I", data)[0] == len(data) - 4:
            return text_of(data[4:], path)
    elif datatype in _PACKED and struct.calcsize(_PACKED[datatype]) == len(data):
        return struct.unpack(_PACKED[datatype], data)[0]
    message = f"Invalid '{path}': {len(data)} bytes are no element of the datatype {datatype[:16]!r} of '{name[:64]}'."
    raise invalid(message, path, "invalid_value")


def packed_text(text: str) -> bytes:
    """A text's binary form."""
    data = text.encode()
    return struct.pack("<I", len(data)) + data


def text_of(data: bytes, path: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise invalid(f"Invalid '{path}': its text is not UTF-8.", path, "invalid_value") from None


def check_output(name: str, path: str) -> None:
    """Raises ApiError for a tensor that there is not."""
    if name != TEXT_OUTPUT:
        message = f"Invalid '{path}': there is no output '{name[:64]}', but '{TEXT_OUTPUT}'."
        raise invalid(message, path, "invalid_value")


def request_of(values: Mapping[str, Any], request_id: str) -> TextRequest:
    """Raises ApiError where a value is missing, of the wrong type or out of range."""
    body = parse_body(dump(dict(values)), KserveGenerateBody)
    return replace(body.asked(), id=request_id or None)
