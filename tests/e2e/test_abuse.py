"""A short form of `make abuse`: hostile requests get the answer that they should, and a neighbour's stream is none the
worse. It measures no time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

import pytest

from benchmarks.abuse import apis, bombs, large, malformed
from benchmarks.abuse.attack import Answer, Row, Target
from benchmarks.abuse.connections import (
    silent_readers,
    slow_readers,
    trickling_bodies,
    trickling_headers,
    trickling_messages,
)
from benchmarks.abuse.neighbour import stream_once
from tests.e2e.conftest import Server

# Of the table's largest rows, what takes the same paths with less work.
SMALLER = (
    Row("echo", partial(large.echoed_log_probabilities, prompts=2, tokens=200), (200,)),
    Row("choices", partial(large.many_choices, choices=8, tokens=20), (200,)),
    Row("biases", partial(large.biases, 5000), large.REFUSED, "logit_bias"),
    Row("text", partial(large.long_text, 50_000), (200, *large.REFUSED), "prompt"),
    Row("nested", large.nested, large.REFUSED),
    Row("number", large.long_number, large.REFUSED),
)
# Of the other APIs, what is refused once it has been counted, and a little of what is taken.
OTHERS = (
    *(row for row in apis.ROWS if 400 in row.statuses and "MB" not in row.name),
    Row("embeddings", partial(apis.embedded, 20), (200,)),
    Row("scores", partial(apis.scored, 20), (200,)),
    Row("ranking", partial(apis.ranked, 20), (200,)),
    Row("conversations", partial(apis.conversations, 4), (200,)),
    Row("detokenize", partial(apis.detokenized, 5000), (200,)),
    Row("gRPC embed", partial(apis.embed_ids, 4, 100), (200,)),
    Row("gRPC score", partial(apis.typed_scores, 20), (200,)),
)
# Those that are refused at once: others take two seconds of a processor's time each.
BOMBS = (
    *(row for row in bombs.ROWS if "recursion" in row.name),
    *(row for row in bombs.ROWS if row.name.startswith("grammar bomb: schema")),
)
CONNECTIONS = (
    Row("slow readers", partial(slow_readers, 10, 2.0), (200,)),
    Row("silent readers", partial(silent_readers, 10, 2.0), (200,)),
    Row("bodies", partial(trickling_bodies, 10, 2.0), (0,)),
    Row("messages", partial(trickling_messages, 10, 2.0), (0,)),
    Row("headers", partial(trickling_headers, 10, 2.0), (0,)),
)


async def answers(target: Target, rows: Sequence[Row]) -> dict[str, Answer]:
    """Of each row once, all at the same time; beside them a neighbour's streams, which must all be the same."""
    expected = await stream_once(target.host, target.port, [])
    assert not expected.startswith("<")
    attacking = asyncio.gather(*(row.make()(target) for row in rows))
    while True:
        was_done = attacking.done()
        assert await stream_once(target.host, target.port, []) == expected
        if was_done:
            return {row.name: answer for row, answer in zip(rows, await attacking, strict=True)}


@pytest.mark.parametrize(
    "rows",
    [malformed.ROWS, BOMBS, SMALLER, OTHERS, CONNECTIONS],
    ids=["malformed", "bombs", "large", "others", "connections"],
)
async def test_hostile_requests_get_their_answer_and_harm_nobody(server: Server, rows: Sequence[Row]) -> None:
    found = await answers(Target("127.0.0.1", server.direct_port), rows)
    assert {row.name: fault for row in rows if (fault := row.fault(found[row.name])) is not None} == {}
