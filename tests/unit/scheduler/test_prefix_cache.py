"""Pool and prefix cache against an oracle that is too slow to serve: it keeps every prefix as a plain tuple of tokens,
and looks through all of them.
"""

from __future__ import annotations

import os
from array import array
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from services.scheduler.core.block_pool import BlockPool
from services.scheduler.core.host_pool import HostPool
from services.scheduler.core.prefix_cache import Prefix, PrefixCache

LONG = int(os.environ.get("QUIRE_TEST_FACTOR", "1"))
BLOCK_SIZE = 2

# Few tokens, so that prompts often begin alike.
PROMPTS = st.lists(st.integers(0, 1), min_size=1, max_size=12)


@dataclass
class User:
    """A sequence, as far as blocks go."""

    tokens: list[int]
    salt: str
    block_ids: list[int]
    prefixes: list[Prefix]
    num_published: int = 0
    follows_forgotten: bool = False


@dataclass
class Oracle:
    """What stands in each block of use, and which free ones are to go first."""

    content: dict[int, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    free_since: list[int] = field(default_factory=list)

    def find(self, tokens: list[int], salt: str) -> list[int]:
        """The blocks of the longest prefix that is all there."""
        found = []
        for end in range(BLOCK_SIZE, len(tokens) + 1, BLOCK_SIZE):
            wanted = (salt, tuple(tokens[:end]))
            blocks = [block_id for block_id, content in self.content.items() if content == wanted]
            if not blocks:
                break
            found += blocks
        return found


class PrefixCacheMachine(RuleBasedStateMachine):
    @initialize(num_blocks=st.integers(3, 14))
    def start(self, num_blocks: int) -> None:
        self.pool = BlockPool(num_blocks)
        self.cache = PrefixCache(self.pool, HostPool(0), BLOCK_SIZE)
        self.oracle = Oracle()
        self.users: list[User] = []

    @rule(tokens=PROMPTS, salt=st.sampled_from(["", "x"]))
    def begin(self, tokens: list[int], salt: str) -> None:
        data = array("I", tokens).tobytes()
        found = self.cache.match(data, salt, len(tokens) // BLOCK_SIZE)
        computed = [prefix for prefix in found if prefix.is_computed]
        assert found[: len(computed)] == computed, "computed prefixes come first"
        assert [prefix.block_id for prefix in computed] == self.oracle.find(tokens, salt)
        reused = [prefix.block_id for prefix in computed]
        num_new = -(-len(tokens) // BLOCK_SIZE) - len(reused)
        num_reused_free = sum(block_id in self.oracle.free_since for block_id in reused)
        if len(found) > len(computed) or num_new + num_reused_free > self.pool.num_free:
            return  # the scheduler would wait
        for block_id in reused:
            self.pool.hold(block_id)
            if block_id in self.oracle.free_since:
                self.oracle.free_since.remove(block_id)
        fresh = self.pool.allocate(num_new)
        evicted = [block_id for block_id in fresh if block_id in self.oracle.content]
        assert evicted == self.oracle.free_since[: len(evicted)], "the least recently used go first"
        assert not evicted or self.pool.num_free == len(self.oracle.free_since) - len(evicted), "blank ones go before"
        for block_id in evicted:
            del self.oracle.content[block_id]
            self.oracle.free_since.remove(block_id)
        user = User(tokens, salt, reused + fresh, [], len(computed))
        user.prefixes = computed + self.cache.announce(data, salt, computed, user)
        self.users.append(user)

    @precondition(lambda self: self.users)
    @rule(data=st.data())
    def compute(self, data: st.DataObject) -> None:
        """The next block of somebody is computed, and its step applied."""
        user = data.draw(st.sampled_from(self.users))
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
        self.oracle = Oracle()

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "pool"):
            return
        self.pool.check_integrity(block_id for user in self.users for block_id in user.block_ids)
        self.cache.check_integrity()
        assert len(self.cache) == len(self.oracle.content)
        assert self.pool.num_reusable == len(self.oracle.free_since)


PrefixCacheMachine.TestCase.settings = settings(max_examples=200 * LONG, stateful_step_count=50, deadline=None)
TestPrefixCacheMachine = PrefixCacheMachine.TestCase
