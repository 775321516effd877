"""A short form of `make abuse`: hostile requests get the answer that they should, and a neighbour's stream is none the
worse. It measures no time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

import pytest

from benchmarks.abuse import apis, bombs, large, malformed, typed_json
from benchmarks.abuse.attack import Answer, Row, Target
from benchmarks.abuse.connections import (
    cancelled_calls,
    churned_connections,
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
    # A little more than the bounds on arrays, objects and values.
    Row("blocks", partial(large.content_blocks, 33_000), (400,)),
    Row("options", partial(large.ollama_options, 66_000), (400,)),
    Row("unknown fields", partial(large.unknown_fields, 66_000), (400,)),
    Row("messages", partial(large.many_messages, 11_000), (400,), "messages"),
    Row("ids", partial(large.token_ids, 530_000), (400,), "prompt"),
    Row("strings", partial(large.template_list, 132_000), (400,), "chat_template_kwargs.names"),
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
TYPED = (
    *(row for row in typed_json.ROWS if 400 in row.statuses and 200 not in row.statuses),
    Row("text", partial(typed_json.text, 50_000), (200,)),
    Row("tokens to text", partial(typed_json.texts_of_tokens, 5000), (200,)),
    Row("embeddings", partial(typed_json.embedded, 20), (200,)),
    Row("log probabilities", partial(typed_json.log_probabilities, 4, 5), (200,)),
)
# These take a second or two of a processor's time each.
SLOW_BOMBS = (
    "8 long texts of one schema",
    "template bomb: a loop of 10^10",
    "template bomb: 10^5 sums of 10^5 numbers",
    "template bomb: 10^5 sorted lists of 10^5 numbers",
    "template bomb: recursion 30 deep, twice each",
    "template bomb: callers in callers",
    "template bomb: a number of 4 * 10^8 digits",
    "template bomb: a number of 10^6 digits as text",
    "template bomb: a list of 10^9 slices",
    "template bomb: doubling of lists in lists",
    "template bomb: 10^6 paragraphs of filler",
    "template bomb: 30,000 additions",
    "regex bomb: 16,000 optional groups",
    "schema bomb: 60 patterns at once",
)
assert set(SLOW_BOMBS) <= {row.name for row in bombs.ROWS}
BOMBS = tuple(row for row in bombs.ROWS if row.name not in SLOW_BOMBS and " bombs " not in row.name)
CONNECTIONS = (
    Row("slow readers", partial(slow_readers, 10, 2.0), (200,)),
    Row("silent readers", partial(silent_readers, 10, 2.0), (200,)),
    Row("bodies", partial(trickling_bodies, 10, 2.0), (0,)),
    Row("messages", partial(trickling_messages, 10, 2.0), (0,)),
    Row("headers", partial(trickling_headers, 10, 2.0), (0,)),
)
# One after another, so that the cancelled requests take no place from each other.
CANCELLED = (
    Row("churned connections", partial(churned_connections, 600), (200,)),
    Row("cancelled calls", partial(cancelled_calls, 600), (200,)),
    *(row for row in bombs.ROWS if row.name == "grammar bombs 9 to 14 at once"),
)


async def answers(target: Target, rows: Sequence[Row], at_once: int) -> dict[str, Answer]:
    """Sends each row once, at most `at_once` at a time, and returns the answers by name. Meanwhile another client
    streams, and its streams must not change."""
    places = asyncio.Semaphore(at_once)

    async def answer(row: Row) -> Answer:
        async with places:
            return await row.make()(target)

    expected = await stream_once(target.host, target.port, [])
    assert not expected.startswith("<")
    attacking = asyncio.gather(*map(answer, rows))
    while True:
        was_done = attacking.done()
        assert await stream_once(target.host, target.port, []) == expected
        if was_done:
            return {row.name: answer for row, answer in zip(rows, await attacking, strict=True)}


@pytest.mark.parametrize(
    "rows",
    [malformed.ROWS, BOMBS, SMALLER, OTHERS, TYPED, CONNECTIONS, CANCELLED],
    ids=["malformed", "bombs", "large", "others", "typed", "connections", "cancelled"],
)
async def test_hostile_requests_get_their_answer_and_harm_nobody(server: Server, rows: Sequence[Row]) -> None:
    # Templates and grammars get 429 if they have waited for the others for half a minute.
    at_once = 4 if rows is BOMBS else 1 if rows is CANCELLED else len(rows)
    found = await answers(Target("127.0.0.1", server.direct_port), rows, at_once)
    assert {row.name: fault for row in rows if (fault := row.fault(found[row.name])) is not None} == {}
