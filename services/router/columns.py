"""Conversion of number columns (token ids and others) to and from the little-endian bytes in gRPC messages."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from typing import Any


def ids_to_bytes(ids: Sequence[int]) -> bytes:
    column = array("I", ids)
    if sys.byteorder == "big":
        column.byteswap()
    return column.tobytes()


def ids_from_bytes(data: bytes) -> list[int]:
    return column_of("I", data).tolist()


def column_of(typecode: str, data: bytes) -> array[Any]:
    """Parses little-endian values of four bytes each. `typecode`: type of the values, a type code of the `array`
    module. Raises ValueError if the length is not a multiple of four."""
    column = array(typecode, data)
    if sys.byteorder == "big":
        column.byteswap()
    return column
