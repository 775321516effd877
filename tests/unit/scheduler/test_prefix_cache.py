"""Pools and prefix cache against an oracle that is too slow to serve: it keeps every prefix as a plain tuple of tokens
and their contents, and looks through all of them.
"""

from __future__ import annotations

import itertools
import os
from array import array
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from services.scheduler.core.block_pool import BlockPool
from services.scheduler.core.content import Content
from services.scheduler.core.host_pool import HostPool
from services.scheduler.core.prefix import Prefix
from services.scheduler.core.prefix_cache import PrefixCache
from tests.unit.scheduler.contents import CONTENTS, insert

LONG = int(os.environ.get("QUIRE_TEST_FACTOR", "1"))
BLOCK_SIZE = 2

Token = tuple[int, Content | None]
Told = tuple[str, tuple[Token, ...]]  # salt, and the tokens to the end of a block

# Few tokens, so that prompts often begin alike.
PROMPTS = st.lists(st.integers(0, 1), min_size=1, max_size=12)


@dataclass
class User:
    """A sequence, as far as blocks go."""

    tokens: list[Token]
    salt: str
    block_ids: list[int]
    prefixes: list[Prefix[User]]
    num_published: int = 0
    follows_forgotten: bool = False
    # Slots on the host that are being copied to its blocks, and what is in them.
    loads: dict[int, Told] = field(default_factory=dict)


@dataclass
class Oracle:
    """What stands in each block of use, and which free ones are to go first; what is on the host, the same way."""

    num_slots: int
    content: dict[int, Told] = field(default_factory=dict)
    free_since: list[int] = field(default_factory=list)
    on_host: list[Told] = field(default_factory=list)  # the least recently used first
    loading: list[Told] = field(default_factory=list)  # from the host; cannot be evicted there

    def find(self, tokens: list[Token], salt: str) -> list[int | None]:
        """Returns the blocks of the longest cached prefix, with None for each block that is only on the host."""
        found: list[int | None] = []
        for end in range(BLOCK_SIZE, len(tokens) + 1, BLOCK_SIZE):
            wanted = (salt, tuple(tokens[:end]))
            blocks = [block_id for block_id, content in self.content.items() if content == wanted]
            if not blocks and wanted not in self.on_host + self.loading:
                break
            found.append(blocks[0] if blocks else None)
        return found

    def evict(self, block_id: int) -> None:
        self.free_since.remove(block_id)
        content = self.content.pop(block_id)
        if content in self.on_host + self.loading:
            return
        if len(self.on_host) + len(self.loading) == self.num_slots:
            if not self.on_host:
                return
            self.on_host.pop(0)
        self.on_host.append(content)


class PrefixCacheMachine(RuleBasedStateMachine):
    @initialize(num_blocks=st.integers(3, 14), num_slots=st.sampled_from([0, 1, 3, 8]))
    def start(self, num_blocks: int, num_slots: int) -> None:
        self.pool = BlockPool(num_blocks)
        self.host: HostPool[User] = HostPool(num_slots)
        self.cache = PrefixCache(self.pool, self.host, BLOCK_SIZE)
        self.oracle = Oracle(num_slots)
        self.users: list[User] = []

    @rule(ids=PROMPTS, salt=st.sampled_from(["", "x"]), contents=CONTENTS)
    def begin(self, ids: list[int], salt: str, contents: tuple[Content, ...]) -> None:
        ids, contents = insert(ids, contents)
        data = array("I", ids).tobytes()
        tokens: list[Token] = [
            (token, next((content for content in contents if content.start <= index < content.stop), None))
            for index, token in enumerate(ids)
        ]
        found = self.cache.match(data, salt, len(tokens) // BLOCK_SIZE, contents)
        known = list(itertools.takewhile(lambda prefix: prefix.is_computed or prefix.is_on_host, found))
        where = [prefix.block_id if prefix.is_computed else None for prefix in known]
        assert where == self.oracle.find(tokens, salt)
        here = [prefix.block_id for prefix in known if prefix.is_computed]
        num_new = -(-len(tokens) // BLOCK_SIZE) - len(here)
        num_here_free = sum(block_id in self.oracle.free_since for block_id in here)
        if any(prefix.owner for prefix in found) or num_new + num_here_free > self.pool.num_free:
            return  # the scheduler would wait
        user = User(tokens, salt, [], [])
        for index, prefix in enumerate(known):
            content = (salt, tuple(tokens[: (index + 1) * BLOCK_SIZE]))
            if prefix.is_computed:
                self.pool.hold(prefix.block_id)
                if prefix.block_id in self.oracle.free_since:
                    self.oracle.free_since.remove(prefix.block_id)
            else:
                self.host.hold(prefix.host_slot)
                self.oracle.on_host.remove(content)
                self.oracle.loading.append(content)
                user.loads[prefix.host_slot] = content
        fresh = self.pool.allocate(num_new)
        evicted = [block_id for block_id in fresh if block_id in self.oracle.content]
        assert evicted == self.oracle.free_since[: len(evicted)], "the least recently used go first"
        assert not evicted or self.pool.num_free == len(self.oracle.free_since) - len(evicted), "blank ones go before"
        for block_id in evicted:
            self.oracle.evict(block_id)
        blocks = iter(fresh)
        user.block_ids = [prefix.block_id if prefix.is_computed else next(blocks) for prefix in known] + list(blocks)
        for prefix in known:
            if not prefix.is_computed:
                prefix.owner = user
        user.num_published = next((i for i, prefix in enumerate(known) if not prefix.is_computed), len(known))
        first = BLOCK_SIZE * len(known)
        parent = known[-1] if known else salt
        user.prefixes = known + self.cache.announce(data[4 * first :], parent, user, contents, first)
        self.users.append(user)

    @precondition(lambda self: self.users)
    @rule(data=st.data())
    def compute(self, data: st.DataObject) -> None:
        """The next block of somebody is computed or copied, and its step applied."""
        user = data.draw(st.sampled_from(self.users))
        self._copied(user)
        index = user.num_published
        if index < len(user.prefixes):
            user.num_published += 1
            self.cache.publish(user.prefixes[index], user.block_ids[index])
            content = (user.salt, tuple(user.tokens[: (index + 1) * BLOCK_SIZE]))
            if content not in self.oracle.content.values() and not user.follows_forgotten:
                self.oracle.content[user.block_ids[index]] = content

    @precondition(lambda self: self.users)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        user = data.draw(st.sampled_from(self.users))
        self.users.remove(user)
        self._copied(user)
        for prefix in user.prefixes[user.num_published :]:
            if prefix.owner is user:
                self.cache.abandon(prefix)
        self.pool.release(user.block_ids)
        held = {block_id for other in self.users for block_id in other.block_ids}
        for block_id in reversed(user.block_ids):
            if block_id not in held and block_id in self.oracle.content:
                self.oracle.free_since.append(block_id)

    @rule()
    def clear(self) -> None:
        self.cache.clear()
        for user in self.users:
            # What they compute from now on follows what was forgotten.
            user.follows_forgotten |= user.num_published > 0
            user.loads.clear()
        self.oracle = Oracle(self.oracle.num_slots)

    def _copied(self, user: User) -> None:
        """All that a starting user needs from the host comes with one plan."""
        for slot, content in user.loads.items():
            self.host.settle(slot)
            self.oracle.loading.remove(content)
            self.oracle.on_host.append(content)
        user.loads.clear()

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "pool"):
            return
        self.pool.check_integrity(block_id for user in self.users for block_id in user.block_ids)
        self.cache.check_integrity()
        self.host.check_integrity(())
        assert self.host.num_cached == len(self.oracle.on_host) + len(self.oracle.loading)
        assert len(self.cache) == len(self.oracle.content)
        assert self.pool.num_reusable == len(self.oracle.free_since)


PrefixCacheMachine.TestCase.settings = settings(max_examples=200 * LONG, stateful_step_count=50, deadline=None)
TestPrefixCacheMachine = PrefixCacheMachine.TestCase
