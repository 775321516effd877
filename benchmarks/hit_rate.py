"""Measures prefix cache hits on a trace of prompts with common prefixes (Mooncake's format: a hash per 512 tokens).

Compares the real block pool, cache and placement with an unbounded cache, Belady's optimum, round robin, and placement
with full knowledge of the caches.
"""

from __future__ import annotations

import heapq
import itertools
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from quire.simulator.traces import Request, read_trace
from services.scheduler.core.block_pool import BlockPool
from services.scheduler.core.host_pool import HostPool
from services.scheduler.core.prefix_cache import PrefixCache
from shared.placement import Node, place

TRACE = Path(__file__).parents[2] / "shared" / "traces" / "mooncake_synthetic.jsonl"
TOKENS_PER_BLOCK = 512
# Placement uses the first 2,048 tokens of a prompt as its key.
KEY_BLOCKS = 4
# Fraction of the time in which the schedulers are busy. It determines how fast outstanding tokens decrease.
UTILIZATION = 0.7


class Cache:
    """The prefix cache of one scheduler. One block of the trace is one KV block."""

    def __init__(self, num_blocks: int) -> None:
        self._pool = BlockPool(num_blocks)
        self._prefixes: PrefixCache[Cache] = PrefixCache(self._pool, HostPool(0), block_size=1)
        self._num_blocks = num_blocks

    def num_found(self, blocks: Sequence[int]) -> int:
        return len(self._prefixes.match(array("I", blocks).tobytes(), "", len(blocks)))

    def serve(self, blocks: Sequence[int]) -> int:
        """Computes and caches the blocks of a prompt that are not in the cache. Returns the number of blocks found."""
        blocks = blocks[: self._num_blocks]
        data = array("I", blocks).tobytes()
        found = self._prefixes.match(data, "", len(blocks))
        for prefix in found:
            self._pool.hold(prefix.block_id)
        ids = [prefix.block_id for prefix in found] + self._pool.allocate(len(blocks) - len(found))
        prefixes = found + self._prefixes.announce(data[4 * len(found) :], found[-1] if found else "", self)
        for prefix, block_id in zip(prefixes, ids, strict=True):
            self._prefixes.publish(prefix, block_id)
        self._pool.release(ids)
        return len(found)


class Cluster:
    """Schedulers with one cache each. Their outstanding work decreases with time."""

    def __init__(self, num_nodes: int, num_blocks: int, tokens_per_second: float) -> None:
        self.caches = [Cache(max(1, num_blocks // num_nodes)) for _ in range(num_nodes)]
        self._capacity = num_blocks // num_nodes * TOKENS_PER_BLOCK
        self._outstanding = [0.0] * num_nodes
        self._rate = tokens_per_second / num_nodes
        self._now = 0.0

    def pass_time(self, now: float) -> None:
        done = (now - self._now) * self._rate
        self._outstanding = [max(0.0, tokens - done) for tokens in self._outstanding]
        self._now = now

    @property
    def nodes(self) -> list[Node]:
        return [Node(str(index), tokens, self._capacity) for index, tokens in enumerate(self._outstanding)]

    def serve(self, index: int, request: Request) -> int:
        found = self.caches[index].serve(request.content)
        self._outstanding[index] += (len(request.content) - found) * TOKENS_PER_BLOCK
        return found


Chooser = Callable[[Cluster, Request], int]


def by_key(cluster: Cluster, request: Request) -> int:
    key = array("I", request.content[:KEY_BLOCKS]).tobytes()[:16].ljust(16, b"\0")
    return int(place(key, len(request.content) * TOKENS_PER_BLOCK, cluster.nodes).name)


def by_turns() -> Chooser:
    turns = itertools.count()
    return lambda cluster, _: next(turns) % len(cluster.caches)


def by_knowledge(cluster: Cluster, request: Request) -> int:
    """Chooses the scheduler with the longest cached prefix among those below the load bound; of equals, the idlest."""
    nodes = cluster.nodes
    num_tokens = len(request.content) * TOKENS_PER_BLOCK
    mean = (sum(node.outstanding_tokens for node in nodes) + num_tokens) / len(nodes)
    free = [
        index
        for index, node in enumerate(nodes)
        if node.outstanding_tokens + num_tokens <= max(1.25 * mean, 0.5 * node.capacity_tokens)
    ] or range(len(nodes))
    return max(free, key=lambda i: (cluster.caches[i].num_found(request.content), -nodes[i].outstanding_tokens))


def hit_share(requests: list[Request], num_nodes: int, num_blocks: int, choose: Chooser) -> float:
    num_tokens = sum(len(request.content) for request in requests) * TOKENS_PER_BLOCK
    cluster = Cluster(num_nodes, num_blocks, num_tokens / requests[-1].arrival_s / UTILIZATION)
    found = 0
    for request in requests:
        cluster.pass_time(request.arrival_s)
        found += cluster.serve(choose(cluster, request), request)
    return found / sum(len(request.content) for request in requests)


def unbounded(requests: list[Request]) -> float:
    seen: set[int] = set()
    found = 0
    for request in requests:
        found += len(list(itertools.takewhile(seen.__contains__, request.content)))
        seen.update(request.content)
    return found / sum(len(request.content) for request in requests)


def belady(requests: list[Request], num_blocks: int) -> float:
    """Returns the hit rate of Belady's optimal policy (1966), which evicts the block whose next use is furthest away.

    It also counts blocks found after missing ones, so no prefix cache can have a higher rate.
    """
    accesses = [block for request in requests for block in request.content]
    next_use = _next_uses(accesses)
    cached: dict[int, int] = {}  # block to its next use
    heap: list[tuple[int, int]] = []
    found = 0
    for block, following in zip(accesses, next_use, strict=True):
        if block in cached:
            found += 1
        elif len(cached) >= num_blocks:
            while True:
                negative, victim = heapq.heappop(heap)
                if cached.get(victim) == -negative:
                    del cached[victim]
                    break
        cached[block] = following
        heapq.heappush(heap, (-following, block))
    return found / len(accesses)


def _next_uses(accesses: Sequence[int]) -> Iterable[int]:
    last: defaultdict[int, int] = defaultdict(lambda: len(accesses) + 1)
    uses = [0] * len(accesses)
    for index in range(len(accesses) - 1, -1, -1):
        uses[index] = last[accesses[index]]
        last[accesses[index]] = index
    return uses


def measure() -> dict[str, float]:
    """Returns the percentage of the prompts' blocks that are found. Empty if the trace file is missing."""
    if not TRACE.exists():
        return {}
    requests = read_trace(TRACE)
    working_set = len({block for request in requests for block in request.content})
    figures = {"unbounded": unbounded(requests)}
    for percent in (10, 25, 50):
        num_blocks = working_set * percent // 100
        figures[f"belady_{percent}"] = belady(requests, num_blocks)
        figures[f"one_scheduler_{percent}"] = hit_share(requests, 1, num_blocks, by_key)
        for num_nodes in (4, 16):
            for name, choose in (("placement", by_key), ("round_robin", by_turns()), ("knowledge", by_knowledge)):
                figures[f"{name}_{num_nodes}_{percent}"] = hit_share(requests, num_nodes, num_blocks, choose)
    return {name: 100 * share for name, share in figures.items()}


if __name__ == "__main__":
    for figure, value in measure().items():
        print(f"{figure:28} {value:6.2f} %")
