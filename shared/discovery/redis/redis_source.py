"""The parts that have registered in Redis."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable

from shared.discovery.parts import Kind, Part, Parts
from shared.discovery.redis.belief import Answer, Belief
from shared.discovery.redis.connection import RedisConnection, RedisUnavailableError
from shared.discovery.redis.keys import keys_of, mark_of, read_changes, read_parts
from shared.discovery.redis.scripts import LIST
from shared.discovery.rhythm import LEASE_S, until_question


async def registered_parts(connection: RedisConnection, prefix: str, kind: Kind) -> list[Part]:
    """Returns the parts of a kind that are registered, by address. Raises RedisUnavailableError."""
    _, fields, _ = await connection.run(LIST, keys_of(prefix, kind), "")
    return sorted(read_parts(fields, {})[0].values(), key=lambda part: part.address)


class RedisSource:
    """Lists the parts of one kind about every 0.6 s. Events of Redis are not used, because they can be lost.

    `model_name`: returns the name of the model whose parts are listed; empty, or None: those of all models. If it
    returns another one than before, the whole list is asked for.
    """

    def __init__(
        self,
        connection: RedisConnection,
        prefix: str,
        kind: Kind,
        *,
        model_name: Callable[[], str] | None = None,
        lease_seconds: float = LEASE_S,
    ) -> None:
        self._connection = connection
        self._keys = keys_of(prefix, kind)
        self._model_name = model_name
        self._listed_model = ""
        self._lease_seconds = lease_seconds
        self._belief = Belief()
        self._num_connections = 0
        self._answered_at = time.monotonic()

    def seconds_since_answer(self) -> float:
        return time.monotonic() - self._answered_at

    async def watch(self) -> AsyncIterator[Parts]:
        last: Parts | None = None
        while True:
            await self._ask()
            if self._belief.parts != last:
                last = self._belief.parts
                yield last
            await asyncio.sleep(until_question())

    async def _ask(self) -> None:
        model = "" if self._model_name is None else self._model_name()
        version = self._belief.version if model == self._listed_model else ""
        try:
            reply = await self._connection.run(LIST, self._keys, version, mark_of(model))
        except RedisUnavailableError:
            self._belief = self._belief.after_silence()
            return
        if self._connection.num_connections != self._num_connections:
            # A call in between, such as a renewal, may have met the end of the old connection.
            self._num_connections = self._connection.num_connections
            self._belief = self._belief.after_silence()
        self._listed_model = model
        self._answered_at = time.monotonic()
        self._belief = self._belief.after(self._read(reply), self._answered_at, self._lease_seconds)

    def _read(self, reply: int | tuple[int, list[bytes], int] | tuple[int, bytes, list[bytes | None], int]) -> Answer:
        if isinstance(reply, int):
            return Answer(reply / 1000, None)
        if len(reply) == 3:
            milliseconds, all_fields, total = reply
            parts, version = read_parts(all_fields, self._belief.listed)
            return Answer(milliseconds / 1000, parts, version, is_empty=not total)
        milliseconds, of_changes, fields, total = reply
        changed = read_changes(fields, self._belief.listed)
        return Answer(milliseconds / 1000, changed, of_changes.decode(), is_empty=not total)
