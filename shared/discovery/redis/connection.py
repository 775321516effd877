"""The one connection of a process to Redis. Needs the package redis."""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from redis.asyncio import Connection, SSLConnection
from redis.asyncio.connection import RedisSSLContext
from redis.exceptions import ConnectionError as ConnectionLostError
from redis.exceptions import NoScriptError, RedisError

from shared.discovery.endpoint import Endpoint
from shared.discovery.redis.scripts import Script

logger = logging.getLogger(__name__)

T = TypeVar("T")

# A call fails after this long. This includes the time that it waits for its turn, and for the connection.
CALL_TIMEOUT_S = 2.0
# Time for one Sentinel to name the primary, and for that server to answer. After it, the next Sentinel is asked.
SENTINEL_TIMEOUT_S = 0.5
PRIMARY_TIMEOUT_S = 1.0
WARNING_INTERVAL_S = 60.0


class RedisUnavailableError(Exception):
    """Redis did not answer, or answered with an error. The message says why."""


class RedisConnection:
    """Runs one script after the other. Connects when it is first used, and again after each failure. With Sentinels, it
    asks them for the primary before each connection. A Sentinel that is cut off from the others can name a server that
    is the primary no more, so what one says counts only once that server has answered that it is the primary."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        username: str = "",
        password: str = "",
        sentinel_password: str = "",
        ca_file: str = "",
        timeout_seconds: float = CALL_TIMEOUT_S,
    ) -> None:
        self._endpoint = endpoint
        self._credentials = {"username": username or None, "password": password or None}
        self._sentinel_credentials = {"password": sentinel_password or None}
        # One object for all TLS connections: reading the certificates takes tens of milliseconds.
        self._tls = RedisSSLContext(cert_reqs="required", check_hostname=True, ca_certs=ca_file or None)
        self._timeout_seconds = timeout_seconds
        # The Sentinel that was right last comes first, and those that were asked in vain come last.
        self._sentinels = list(endpoint.addresses)
        self._connection: Connection | None = None
        self._local_host = ""
        # Number of connections so far. A new one may lead to another server, which lacks the last changes.
        self.num_connections = 0
        self._turn = asyncio.Lock()
        self._is_in_trouble = False
        self._warned_at = -math.inf

    async def run(self, script: Script, keys: Sequence[str], *arguments: str) -> Any:
        """Runs a script and returns its reply. The script's first argument is a random text. If the connection turns
        out to be closed, tries once more with a new one. Raises RedisUnavailableError."""

        async def run() -> Any:
            # A script that runs twice must not give two states the same version.
            command: tuple[str | int, ...] = (len(keys), *keys, secrets.token_hex(8), *arguments)
            connection = await self._connected()
            try:
                return await _call(connection, "EVALSHA", script.sha, *command)
            except NoScriptError:  # Redis was started since
                return await _call(connection, "EVAL", script.text, *command)

        async def run_again_if_closed() -> Any:
            was_connected = self._connection is not None
            try:
                return await run()
            except (ConnectionLostError, OSError, RuntimeError):
                if not was_connected:
                    raise
                # The connection was closed since the last call, as by a restart of Redis, which may be over. With a new
                # connection at once, parts register a second earlier. Scripts may run twice.
                await self._disconnect()
                return await run()

        return await self._in_turn(run_again_if_closed)

    async def local_host(self) -> str:
        """Returns the address of this host on its way to Redis, in brackets for IPv6. Connects if necessary. Raises
        RedisUnavailableError."""
        await self._in_turn(self._connected)
        return self._local_host

    async def close(self) -> None:
        await self._disconnect()

    async def _in_turn(self, call: Callable[[], Awaitable[T]]) -> T:
        try:
            async with asyncio.timeout(self._timeout_seconds), self._turn:
                try:
                    result = await call()
                except BaseException:
                    # The reply of a call that was cut short would be read as the reply of the next one.
                    await self._disconnect()
                    raise
        except (RedisError, OSError, RuntimeError) as error:
            # uvloop raises RuntimeError for a write to a connection that was closed.
            reason = str(error) or f"no answer within {self._timeout_seconds:g} s"
            self._warn(reason)
            raise RedisUnavailableError(reason) from error
        if self._is_in_trouble:
            logger.info("Redis answers again")
        self._is_in_trouble = False
        return result

    def _warn(self, reason: str) -> None:
        """Logs once per outage, and once per WARNING_INTERVAL_S if some calls succeed and others fail."""
        now = time.monotonic()
        if not self._is_in_trouble and now - self._warned_at >= WARNING_INTERVAL_S:
            logger.warning(
                "Redis is unavailable: %s. Known parts stay in use; new ones are not found, and registrations end",
                reason.rstrip("."),
            )
            self._is_in_trouble, self._warned_at = True, now

    async def _connected(self) -> Connection:
        if self._connection is None:
            if self._endpoint.master_name:
                host, port = await self._connect_to_primary()
            else:
                host, port = self._endpoint.addresses[0]
                await self._connect_to(host, port)
            self._local_host = _local_host(self._opened.getpeername() or host, port)
            self.num_connections += 1
        return self._opened

    async def _connect_to(self, host: str, port: int) -> None:
        self._connection = self._connection_to(host, port, self._credentials, self._endpoint.database)
        await _open(self._connection)

    async def _connect_to_primary(self) -> tuple[str, int]:
        """Returns the primary's host and port, once it is connected."""
        troubles = []
        for sentinel in list(self._sentinels):
            # At first to the end: if the call has no time left for the others, the next call begins with them.
            self._sentinels.remove(sentinel)
            self._sentinels.append(sentinel)
            try:
                async with asyncio.timeout(SENTINEL_TIMEOUT_S):
                    primary = await self._ask(sentinel)
                async with asyncio.timeout(PRIMARY_TIMEOUT_S):
                    await self._connect_to(*primary)
                    role = (await _call(self._opened, "ROLE"))[0]
                if role != b"master":
                    raise RedisError(f"names {_address(*primary)}, which is a {role.decode()}")
            except (RedisError, OSError) as error:
                await self._disconnect()
                troubles.append(f"{_address(*sentinel)}: {str(error) or 'no answer'}")
                continue
            self._sentinels.remove(sentinel)
            self._sentinels.insert(0, sentinel)
            return primary
        raise RedisError("no Sentinel names the primary: " + "; ".join(troubles))

    async def _ask(self, sentinel: tuple[str, int]) -> tuple[str, int]:
        """Returns what the Sentinel says is the primary."""
        connection = self._connection_to(*sentinel, self._sentinel_credentials, 0)
        try:
            await _open(connection)
            named = await _call(connection, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._endpoint.master_name)
        finally:
            await connection.disconnect(nowait=True)
        if named is None:
            raise RedisError(f"does not know {self._endpoint.master_name}")
        return named[0].decode(), int(named[1])

    @property
    def _opened(self) -> Connection:
        assert self._connection is not None
        return self._connection

    def _connection_to(self, host: str, port: int, credentials: dict[str, str | None], database: int) -> Connection:
        options: dict[str, Any] = {
            "host": host,
            "port": port,
            "db": database,
            # The call has a timeout, so its steps need none.
            "socket_timeout": None,
            "socket_connect_timeout": None,
            "protocol": 2,
            # Does not tell Redis the name of the library, which an ACL user might not be allowed to do.
            "driver_info": None,
            **credentials,
        }
        if not self._endpoint.has_tls:
            return Connection(**options)
        connection = SSLConnection(**options)
        connection.ssl_context = self._tls
        return connection

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.disconnect(nowait=True)


async def _open(connection: Connection) -> None:
    await connection.connect()  # type: ignore[no-untyped-call]


async def _call(connection: Connection, *command: str | int) -> Any:
    await connection.send_command(*command)
    return await connection.read_response()


def _address(host: str, port: int) -> str:
    return f"{host}:{port}"


def _local_host(peer: str, port: int) -> str:
    """Returns the address of this host from which packets to the peer leave."""
    family = socket.AF_INET6 if ":" in peer else socket.AF_INET
    # A datagram socket sends nothing when it connects. It only gets its address, by the same rule as the connection.
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((peer, port))
        host = str(probe.getsockname()[0])
    return f"[{host}]" if ":" in host else host
