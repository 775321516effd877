"""A process and its Redis, if its options name one."""

from __future__ import annotations

import secrets
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shared.config import ConfigError
from shared.discovery.endpoint import parse_endpoint
from shared.discovery.options import DiscoveryOptions
from shared.discovery.parts import Kind, Part
from shared.version import version

if TYPE_CHECKING:
    from shared.discovery.redis import RedisConnection, RedisRegistration, RedisSource


@dataclass(frozen=True, slots=True)
class Lease:
    """What a part knows of its registration. `runs`: whether others find it; `age_s`: seconds since Redis last took the
    lease, None if it has not."""

    runs: bool
    age_s: float | None


class Registry:
    """Finds other parts and registers this one, over one connection. Does nothing without --redis."""

    def __init__(self, options: DiscoveryOptions, *, advertise: str = "") -> None:
        """Raises ConfigError if the package redis is not installed, or if the file of --redis-ca cannot be read."""
        self._prefix = options.redis_prefix
        self._advertise = advertise
        self._connection = _connect(options) if options.redis else None
        # Kind and registration of this part, once it has joined.
        self._joined: tuple[Kind, RedisRegistration] | None = None

    def source(self, kind: Kind, model_name: Callable[[], str] | None = None) -> RedisSource | None:
        """`model_name`: returns the name of the model whose parts count; empty, or None: those of all models."""
        if self._connection is None:
            return None
        from shared.discovery.redis import RedisSource

        return RedisSource(self._connection, self._prefix, kind, model_name=model_name)

    async def registered(self) -> dict[Kind, list[Part]]:
        """Returns the parts of each kind that are registered, by address. Raises RedisUnavailableError."""
        if self._connection is None:
            return {}
        from shared.discovery.redis import registered_parts

        return {kind: await registered_parts(self._connection, self._prefix, kind) for kind in Kind}

    def join(self, kind: Kind, listening: Sequence[str], *, model: str = "", kv_tokens: int = 0) -> None:
        """Registers this part, and keeps it registered until `leave`. Returns at once. `listening`: the addresses that
        the part listens on; `kv_tokens`: the number of tokens that fit into its KV cache."""
        if self._connection is None:
            return
        from shared.discovery.redis import RedisRegistration

        registration = RedisRegistration(
            *(self._connection, self._prefix, kind, listening),
            boot_id=secrets.token_hex(8),
            model=model,
            version=version(),
            kv_tokens=kv_tokens,
            advertise=self._advertise,
        )
        registration.start()
        self._joined = (kind, registration)

    async def leave(self) -> None:
        """Ends the registration, so that no part that starts now looks for this one. Takes at most half a second,
        whatever Redis does."""
        if self._joined is not None:
            await self._joined[1].leave()

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()

    @property
    def leases(self) -> dict[Kind, Lease]:
        """The lease of this part, by its kind. Empty before `join`, and without --redis."""
        if self._joined is None:
            return {}
        kind, registration = self._joined
        return {kind: Lease(registration.is_registered, registration.seconds_since_renewal)}


def _connect(options: DiscoveryOptions) -> RedisConnection:
    try:
        from shared.discovery.redis import RedisConnection
    except ModuleNotFoundError as error:
        raise ConfigError(f"--redis needs a package that is not installed: {error.name}") from error
    if options.redis_ca:
        try:
            ssl.create_default_context(cafile=options.redis_ca)
        except OSError as error:
            raise ConfigError(f"--redis-ca {options.redis_ca}: {error}") from error
    return RedisConnection(
        parse_endpoint(options.redis),
        username=options.redis_username,
        password=options.redis_password,
        sentinel_password=options.redis_sentinel_password,
        ca_file=options.redis_ca,
    )
