"""Decides whether the parts leak resources.

Compares two quiet points: the first one, after the warm-up, and the last one. The warm-up starts every child, fills
every cache and pool, and sends every row once. The bounds:

- Resident memory grows by at most MAX_BYTES_PER_REQUEST for each request between the points. If the record of a request
  were never freed, it would take more: a Python object with its dictionary alone has about 400 bytes. ALLOCATOR_BYTES
  more are allowed for fragmentation: freed memory between live objects stays with the allocator, and its amount at a
  given moment is random.
- At most MAX_ADDED_DESCRIPTORS more descriptors are open. Clients have closed theirs, but Envoy and gRPC pool the
  connections between the parts and open them on demand.
- At most MAX_ADDED_THREADS more threads run. Thread pools start threads on demand and end idle ones.
- There are at most MAX_ADDED_PROCESSES more child processes. A router keeps two for templates and one for grammars. If
  it ended one that exceeded a limit, it starts another when a request needs it.
- The router and its child processes have at most MAX_ROUTER_BYTES at any time, the same bound as in `make abuse`.
- At every quiet point no sequence runs or waits, and every KV block is free. Cached blocks count as free.
- When a part has stopped, none of its processes is alive.
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
MAX_ROUTER_BYTES = 500e6


@dataclass(frozen=True, slots=True)
class Growth:
    """Growth of one part from the first point to the last."""

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
    """Returns the growth of each part. `points`: the quiet points since the warm-up, at least two."""
    first, last = points[0], points[-1]
    requests = last.requests - first.requests
    return {part: Growth(first.parts[part], last.parts[part], requests) for part in first.parts}


def too_large(peaks: Mapping[str, Figures]) -> list[str]:
    """Describes a router that has exceeded its bound. `peaks`: the highest figures of each part."""
    peak = peaks["router"].resident_bytes
    if peak <= MAX_ROUTER_BYTES:
        return []
    return [f"router: {peak / 1e6:.0f} MB at its peak; at most {MAX_ROUTER_BYTES / 1e6:.0f} MB are allowed"]


def grown(points: Sequence[Point], judges_memory: bool = True) -> list[str]:
    """Describes the resources that have grown beyond their bounds."""
    return [
        f"{part}: {excess}" for part, growth in growths(points).items() for excess in excesses(growth, judges_memory)
    ]


def excesses(growth: Growth, judges_memory: bool = True) -> list[str]:
    """Describes the resources of one part that have grown beyond their bounds."""
    found = []
    if judges_memory and growth.resident_bytes > ALLOCATOR_BYTES + MAX_BYTES_PER_REQUEST * growth.num_requests:
        found.append(f"{growth.resident_bytes / 1e6:.0f} MB more, {growth.bytes_per_request:.0f} bytes per request")
    for what, before, after, bound in (
        ("descriptors", growth.first.descriptors, growth.last.descriptors, MAX_ADDED_DESCRIPTORS),
        ("threads", growth.first.threads, growth.last.threads, MAX_ADDED_THREADS),
        ("processes", growth.first.processes, growth.last.processes, MAX_ADDED_PROCESSES),
    ):
        if after > before + bound:
            found.append(f"{after} {what}, {before} at first")
    return found


def held(points: Sequence[Point]) -> list[str]:
    """Describes blocks and sequences that are held at a quiet point, and parts that have ended."""
    faults = []
    for point in points:
        load, when = point.load, f"after {point.seconds:.0f} s"
        if load.used_blocks:
            faults.append(f"{load.used_blocks} of {load.blocks} KV blocks are not free {when}")
        if load.running or load.waiting:
            faults.append(f"{load.running} sequences run and {load.waiting} wait {when}")
        faults += [f"{part}: has ended {when}" for part, found in point.parts.items() if not found.resident_bytes]
    return faults
