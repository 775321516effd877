"""Makes a part known in Redis."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence

from shared.discovery.parts import Kind, Part
from shared.discovery.redis.advertised import advertised_address, is_loopback
from shared.discovery.redis.connection import RedisConnection, RedisUnavailableError
from shared.discovery.redis.keys import describe, keys_of, read_part
from shared.discovery.redis.scripts import LEAVE, REGISTER
from shared.discovery.rhythm import LEASE_S, until_renewal

logger = logging.getLogger(__name__)

# A part that stops waits this long at most until it is no longer registered. Otherwise, its lease ends by itself.
LEAVE_TIMEOUT_S = 0.5


class RedisRegistration:
    """Renews a part's lease about every second, and tells Redis each time all that it should know of the part. So a
    Redis that has lost its data knows every part again after a second."""

    def __init__(
        self,
        connection: RedisConnection,
        prefix: str,
        kind: Kind,
        listening: Sequence[str],
        *,
        boot_id: str,
        model: str = "",
        version: str = "",
        kv_tokens: int = 0,
        advertise: str = "",
        lease_seconds: float = LEASE_S,
    ) -> None:
        """`listening`: the addresses that the part listens on. `advertised_address` chooses the one to register."""
        self._connection = connection
        self._keys = keys_of(prefix, kind)
        self._kind = kind
        self._listening = listening
        self._boot_id = boot_id
        # Boot id of the part that has registered the same address; empty if none has.
        self._shares_address_with = ""
        self._model = model
        self._version = version
        self._kv_tokens = kv_tokens
        self._advertise = advertise
        self._lease_seconds = lease_seconds
        self._is_leaving = asyncio.Event()
        self._renewing: asyncio.Task[None] | None = None
        # What Redis has taken last, and when.
        self._registered: Part | None = None
        self._renewed_at = 0.0

    @property
    def is_registered(self) -> bool:
        """Whether the part's lease runs, as far as the part knows."""
        return self._registered is not None and time.monotonic() - self._renewed_at < self._lease_seconds

    @property
    def seconds_since_renewal(self) -> float | None:
        """Seconds since Redis last took the lease; None if it never has, or not since the part left."""
        return None if self._registered is None else time.monotonic() - self._renewed_at

    def start(self) -> None:
        """Starts to renew the lease; returns at once."""
        self._renewing = asyncio.create_task(self._renew_until_leaving())

    async def leave(self) -> None:
        """Ends the lease. Waits LEAVE_TIMEOUT_S at most."""
        self._is_leaving.set()
        if self._renewing is None:
            return
        with contextlib.suppress(RedisUnavailableError, TimeoutError):
            async with asyncio.timeout(LEAVE_TIMEOUT_S):
                # A renewal that arrives after the end of the lease would start it again.
                await asyncio.wait((self._renewing,))
                if self._registered is not None:
                    await self._end(self._registered)
        self._renewing.cancel()
        self._renewing = self._registered = None

    async def _renew_until_leaving(self) -> None:
        while not self._is_leaving.is_set():
            try:
                await self._renew()
            except RedisUnavailableError:
                pass  # the connection has logged it
            except Exception:
                # A bug in one renewal must not end the registration.
                logger.exception("a renewal of the registration in Redis failed")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(until_renewal()):
                    await self._is_leaving.wait()

    async def _renew(self) -> None:
        local_host = await self._connection.local_host()
        address = advertised_address(self._advertise, self._listening, local_host)
        part = Part(address, self._boot_id, self._model, self._version, self._kv_tokens)
        lease = str(round(self._lease_seconds * 1000))
        before = await self._connection.run(REGISTER, self._keys, address, describe(part), lease)
        self._renewed_at = time.monotonic()
        last, self._registered = self._registered, part
        if part == last:
            self._warn_if_shared(part, before)
            return
        logger.info("registered in Redis as the %s at %s", self._kind, address)
        if is_loopback(address) and not is_loopback(local_host):
            logger.warning(
                "other hosts cannot reach this %s at %s, the address that it has registered in Redis: set --advertise, "
                "or --listen on an address of the network",
                *(self._kind, address),
            )
        if last is not None and last.address != address:
            await self._end(last)

    async def _end(self, part: Part) -> None:
        await self._connection.run(LEAVE, self._keys, part.address, describe(part))

    def _warn_if_shared(self, part: Part, before: bytes | None) -> None:
        other = None if before is None else read_part(part.address, before)
        if other is None or other.boot_id == self._boot_id:
            return
        if other.boot_id != self._shares_address_with:
            self._shares_address_with = other.boot_id
            logger.warning(
                "another %s (boot id %s) has registered the same address in Redis, %s: give each an address of its own "
                "with --advertise",
                *(self._kind, other.boot_id, part.address),
            )
