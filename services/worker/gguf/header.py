"""Reads the header of a GGUF file (version 2 or 3): metadata and the position of each tensor.

The gguf package has a reader too, but it takes many seconds: it makes a numpy array for every token and every merge of
the vocabulary. This reader skips the vocabulary, because workers do not need it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 1 << 20
MAX_DIMENSIONS = 4  # ggml's own limit
# Limits far above the counts of any real file. Because of them, a file with false counts is refused within a second.
MAX_KEYS, MAX_TENSORS = 1 << 16, 1 << 18
MAX_STRINGS = 1 << 24  # in one array
MAX_NUMBERS = 1 << 22  # in all arrays together; they become Python's objects
MAX_STRING_BYTES = 1 << 26  # some files have a whole tokenizer.json in a string
MAX_TEXT_BYTES = 1 << 27  # of all strings together, without those in arrays
# Numpy types by GGUF's type numbers: integers and floats of 1 to 8 bytes, and bool.
_NUMBERS = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "?",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True, slots=True)
class TensorInfo:
    name: str
    shape: tuple[int, ...]  # the last dimension is contiguous
    kind: int  # ggml's number for the type
    offset: int  # offset of the tensor's first byte from the start of the file


class HeaderReader:
    """Reads the header of a mapped file from front to back."""

    def __init__(self, data: NDArray[np.uint8]) -> None:
        self._data = data
        self._buffer = data.data
        self._position = 0
        self._num_numbers = self._text_bytes = 0

    def read(self) -> tuple[dict[str, Any], list[TensorInfo]]:
        """Returns the metadata and the tensors. Does not read arrays of strings; their value is None. Raises ValueError
        or struct.error if the header is not valid GGUF.
        """
        if bytes(self._buffer[:4]) != MAGIC:
            raise ValueError("it does not begin with GGUF")
        self._position = 4
        version, num_tensors, num_keys = self._unpack("<IQQ")
        if version not in VERSIONS:
            raise ValueError(f"its version is {version}; only {VERSIONS[0]} and {VERSIONS[1]} are supported")
        if num_keys > MAX_KEYS or num_tensors > MAX_TENSORS:
            raise ValueError(f"its header claims {num_keys} keys and {num_tensors} tensors, which is too many")
        metadata = {}
        for _ in range(num_keys):
            key = self._string()
            metadata[key] = self._value(self._unpack("<I")[0])
        infos = [self._tensor() for _ in range(num_tensors)]
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        # llama.cpp requires a power of two as well.
        if not isinstance(alignment, int) or not 1 <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
            raise ValueError(f"its alignment is {alignment!r}; expected a power of two up to {MAX_ALIGNMENT}")
        start = -(-self._position // alignment) * alignment
        return metadata, [TensorInfo(info.name, info.shape, info.kind, start + info.offset) for info in infos]

    def _tensor(self) -> TensorInfo:
        name = self._string()
        (num_dimensions,) = self._unpack("<I")
        if not 1 <= num_dimensions <= MAX_DIMENSIONS:
            raise ValueError(f"{name} has {num_dimensions} dimensions; expected 1 to {MAX_DIMENSIONS}")
        sizes = self._unpack(f"<{num_dimensions}Q")
        kind, offset = self._unpack("<IQ")
        return TensorInfo(name, tuple(reversed(sizes)), kind, offset)

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            element_kind, count = self._unpack("<IQ")
            if element_kind == _STRING:
                if count > MAX_STRINGS:
                    raise ValueError(f"its metadata has an array of {count} strings; expected at most {MAX_STRINGS}")
                for _ in range(count):
                    (length,) = self._unpack("<Q")
                    self._position += length
                return None
            self._num_numbers += count
            if self._num_numbers > MAX_NUMBERS:
                raise ValueError(
                    f"its metadata has arrays of {self._num_numbers} numbers; expected at most {MAX_NUMBERS}"
                )
            return self._numbers(element_kind, count).tolist()
        return self._numbers(kind, 1)[0].item()

    def _numbers(self, kind: int, count: int) -> NDArray[Any]:
        if kind not in _NUMBERS:
            raise ValueError(f"its metadata has values of type {kind}, which is not supported")
        dtype = np.dtype(_NUMBERS[kind])
        numbers = np.frombuffer(self._buffer, dtype, count, self._position)
        self._position += count * dtype.itemsize
        return numbers

    def _string(self) -> str:
        (length,) = self._unpack("<Q")
        self._text_bytes += length
        if length > MAX_STRING_BYTES or self._text_bytes > MAX_TEXT_BYTES:
            raise ValueError(
                f"its header has a text of {length} bytes, and {self._text_bytes} bytes in all texts; expected at most "
                f"{MAX_STRING_BYTES} and {MAX_TEXT_BYTES}"
            )
        text = bytes(self._buffer[self._position : self._position + length])
        self._position += length
        return text.decode("utf-8", errors="replace")

    def _unpack(self, form: str) -> tuple[int, ...]:
        values = struct.unpack_from(form, self._buffer, self._position)
        self._position += struct.calcsize(form)
        return values
