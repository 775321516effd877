"""Requests that begin alike meet, no scheduler is swamped, and one that comes or goes moves its own keys only."""

from __future__ import annotations

import random
from array import array
from collections import Counter

import pytest

from shared.placement import Node, chat_key, named_key, place, prompt_key


def idle(count: int) -> list[Node]:
    return [Node(f"scheduler-{index}", 0, 1000) for index in range(count)]


KEYS = [index.to_bytes(16, "little") for index in range(3000)]


def test_keys_spread_evenly_and_stay() -> None:
    nodes = idle(5)
    homes = {key: place(key, 1, nodes).name for key in KEYS}
    shares = Counter(homes.values())
    assert len(shares) == 5
    assert max(shares.values()) < 1.15 * len(KEYS) / 5
    random.Random(1).shuffle(nodes)
    assert {key: place(key, 1, nodes).name for key in KEYS} == homes


def test_a_node_that_goes_moves_its_own_keys_only() -> None:
    nodes = idle(5)
    left = nodes[1:]
    for key in KEYS:
        before = place(key, 1, nodes)
        after = place(key, 1, left)
        assert after == before or before is nodes[0]


@pytest.mark.parametrize("num_keys", [1, 3, 1000])
def test_no_node_gets_much_more_than_its_share_however_popular_a_key_is(num_keys: int) -> None:
    outstanding = {node.name: 0 for node in idle(8)}
    chance = random.Random(num_keys)
    for _ in range(4000):
        nodes = [Node(name, tokens, 1000) for name, tokens in outstanding.items()]
        num_tokens = chance.randint(1, 500)
        outstanding[place(chance.choice(KEYS[:num_keys]), num_tokens, nodes).name] += num_tokens
    mean = sum(outstanding.values()) / 8
    assert max(outstanding.values()) <= 1.25 * mean + 500


def test_a_popular_key_stays_where_it_is_while_that_node_is_not_half_full() -> None:
    outstanding = {node.name: 0 for node in idle(4)}
    homes = set()
    for _ in range(5):
        nodes = [Node(name, tokens, 1000) for name, tokens in outstanding.items()]
        home = place(KEYS[0], 100, nodes).name
        homes.add(home)
        outstanding[home] += 100
    assert len(homes) == 1
    assert place(KEYS[0], 100, [Node(name, tokens, 1000) for name, tokens in outstanding.items()]).name not in homes


def test_work_that_outweighs_everything_goes_to_the_idlest() -> None:
    nodes = [Node("a", 90, 100), Node("b", 10, 100), Node("c", 80, 100)]
    assert place(KEYS[0], 10**6, nodes).name == "b"


def test_a_chat_keeps_its_key_from_turn_to_turn() -> None:
    first = [("system", "Be brief."), ("user", "Hello")]
    later = [*first, ("assistant", "Hello!"), ("user", "And now?")]
    key = chat_key("m", "", first)
    assert chat_key("m", "", later) == key
    others = [
        chat_key("n", "", first),
        chat_key("m", "salt", first),
        chat_key("m", "", [("system", "Be brief."), ("user", "Hi")]),
        chat_key("m", "", [("system", "Be brief"), ("user", ".Hello")]),
    ]
    assert len({key, *others}) == 5


def test_a_prompt_s_key_is_its_first_whole_blocks() -> None:
    def key(count: int) -> bytes:
        return prompt_key("m", "", array("I", range(count)).tobytes())

    assert key(100) == key(111) != key(112)
    assert key(512) == key(10_000)
    assert key(3) != key(4)
    assert named_key("m", "a") != named_key("m", "b")
