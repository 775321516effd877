"""Host memory that CUDA is told to pin: the checks of cudaHostRegister and cudaHostUnregister."""

from __future__ import annotations

from pathlib import Path

INVALID_VALUE = 1
MEMORY_ALLOCATION = 2
ILLEGAL_ADDRESS = 700
ALREADY_REGISTERED = 712
NOT_REGISTERED = 713
PORTABLE, MAPPED = 1, 2
_ALL_FLAGS = 15


class RegisteredMemory:
    """Functions return CUDA's error code, 0 for none."""

    def __init__(self) -> None:
        self.limit: int | None = None  # bytes that may be locked; None: no limit
        self.flags: dict[int, int] = {}  # by address
        self.codes: list[int] = []  # of all calls
        self._sizes: dict[int, int] = {}  # bytes by address

    @property
    def num_bytes(self) -> int:
        return sum(self._sizes.values())

    def add(self, address: int, num_bytes: int, flags: int) -> int:
        self.codes.append(self._problem(address, num_bytes, flags))
        if not self.codes[-1]:
            self._sizes[address], self.flags[address] = num_bytes, flags
        return self.codes[-1]

    def remove(self, address: int) -> int:
        """Refuses memory that the process has unmapped already, where a real driver would unlock another's pages."""
        known = address in self._sizes
        self.codes.append(
            NOT_REGISTERED if not known else 0 if is_mapped(address, self._sizes[address]) else INVALID_VALUE
        )
        if not self.codes[-1]:
            del self._sizes[address], self.flags[address]
        return self.codes[-1]

    def holds(self, start: int, end: int) -> bool:
        return any(address <= start and end <= address + size for address, size in self._sizes.items())

    def _problem(self, address: int, num_bytes: int, flags: int) -> int:
        if num_bytes <= 0 or flags & ~_ALL_FLAGS or not is_mapped(address, num_bytes):
            return INVALID_VALUE
        if any(address < other + size and other < address + num_bytes for other, size in self._sizes.items()):
            return ALREADY_REGISTERED
        if self.limit is not None and self.num_bytes + num_bytes > self.limit:
            return MEMORY_ALLOCATION
        return 0


def is_mapped(address: int, num_bytes: int) -> bool:
    """Whether all of it is part of this process's memory."""
    at = address
    for line in Path("/proc/self/maps").read_text().splitlines():  # ascending
        start, end = (int(bound, 16) for bound in line.split()[0].split("-"))
        if start <= at < end:
            at = end
    return at >= address + num_bytes
