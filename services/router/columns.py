"""Token ids and other numbers as columns: u32, little-endian, as messages have them."""

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
    """Little-endian values of four bytes each. Raises ValueError for anything else."""
    column = array(typecode, data)
    if sys.byteorder == "big":
        column.byteswap()
    return column
