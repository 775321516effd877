"""What is left of the requests, and whether it is too much.

Compared are two quiet points: the first after the warm-up, which has started every child, filled every cache and pool
and sent every row once, and the last. The bounds:

- Resident memory grows by at most MAX_BYTES_PER_REQUEST for each request in between. That is less than the record of a
  request takes if it is kept for ever: a Python object with its dictionary alone has some 400 bytes. ALLOCATOR_BYTES
  are allowed beside it. A row leaves holes among live objects, which an allocator keeps for the next one, and how many
  there are at a point is chance.
- MAX_ADDED_DESCRIPTORS more descriptors are open. Clients have closed theirs, but Envoy and gRPC keep connections
  between the parts in pools, and open them as they need them.
- MAX_ADDED_THREADS more threads run. Thread pools begin threads with the work, and end them when they have none.
- MAX_ADDED_PROCESSES more children are there: a router keeps two for templates and one for grammars. Where one was
  ended for what it took, another one is started when a request needs it.
- At every quiet point no sequence runs or waits, and every KV block is free: cached blocks count as free.
- No process of a part is left when the part has stopped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.soak.figures import Figures, Point

MAX_BYTES_PER_REQUEST = 400.0
ALLOCATOR_BYTES = 32e6
MAX_ADDED_DESCRIPTORS = 8
MAX_ADDED_THREADS = 8
MAX_ADDED_PROCESSES = 3


@dataclass(frozen=True, slots=True)
class Growth:
    """Of one part, from the first of two points to the last."""

    first: Figures
    last: Figures
    num_requests: int

    @property
    def resident_bytes(self) -> int:
        return self.last.resident_bytes - self.first.resident_bytes

    @property
    def bytes_per_request(self) -> float:
        return self.resident_bytes / max(1, self.num_requests)


def growths(points: Sequence[Point]) -> Mapping[str, Growth]:
    """By part. `points`: the quiet points since the warm-up, two at least."""
    first, last = points[0], points[-1]
    requests = last.requests - first.requests
    return {part: Growth(first.parts[part], last.parts[part], requests) for part in first.parts}


def grown(points: Sequence[Point], judges_memory: bool = True) -> list[str]:
    """What has grown too much."""
    faults = []
    for part, growth in growths(points).items():
        if judges_memory and growth.resident_bytes > ALLOCATOR_BYTES + MAX_BYTES_PER_REQUEST * growth.num_requests:
            faults.append(
                f"{part}: {growth.resident_bytes / 1e6:.0f} MB more, {growth.bytes_per_request:.0f} bytes per request"
            )
        for what, before, after, bound in (
            ("descriptors", growth.first.descriptors, growth.last.descriptors, MAX_ADDED_DESCRIPTORS),
            ("threads", growth.first.threads, growth.last.threads, MAX_ADDED_THREADS),
            ("processes", growth.first.processes, growth.last.processes, MAX_ADDED_PROCESSES),
        ):
            if after > before + bound:
                faults.append(f"{part}: {after} {what}, {before} at first")
    return faults


def held(points: Sequence[Point]) -> list[str]:
    """What is not free although nothing is asked, and parts that have ended."""
    faults = []
    for point in points:
        load, when = point.load, f"after {point.seconds:.0f} s"
        if load.used_blocks:
            faults.append(f"{load.used_blocks} of {load.blocks} KV blocks are not free {when}")
        if load.running or load.waiting:
            faults.append(f"{load.running} sequences run and {load.waiting} wait {when}")
        faults += [f"{part}: has ended {when}" for part, found in point.parts.items() if not found.resident_bytes]
    return faults
