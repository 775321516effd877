"""All rows of the table."""

from __future__ import annotations

from functools import partial

from benchmarks.abuse import apis, bombs, columns, large, malformed, typed_json
from benchmarks.abuse.attack import Row
from benchmarks.abuse.connections import (
    cancelled_calls,
    churned_connections,
    silent_readers,
    slow_readers,
    trickling_bodies,
    trickling_headers,
    trickling_messages,
)

# Each of these rows starts many clients itself, so it runs as one copy.
_CONNECTIONS = (
    Row("200 readers of a byte per second", partial(slow_readers, 200), (200, 429, 503), copies=(1,)),
    Row("300 streams that are never read", partial(silent_readers, 300, 30.0), (200, 429, 503), None, (1,), True),
    # Two thirds have a request, and new clients are accepted after all of them.
    Row("5,000 connections, each closed immediately", partial(churned_connections, 5000), (200,), None, (1,), True),
    Row("3,000 gRPC calls, each cancelled after 2 ms", partial(cancelled_calls, 3000), (200,), copies=(1,)),
    Row("200 bodies that trickle in", partial(trickling_bodies, 200), (408,), copies=(1,)),
    Row("200 gRPC-Web messages that trickle in", partial(trickling_messages, 200), (408,), copies=(1,)),
    Row("200 headers that trickle in", partial(trickling_headers, 200), (408,), copies=(1,)),
)
ROWS = (*large.ROWS, *apis.ROWS, *typed_json.ROWS, *_CONNECTIONS, *bombs.ROWS, *malformed.ROWS, *columns.ROWS)
