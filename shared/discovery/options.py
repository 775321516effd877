"""The options of discovery through Redis, which all parts share."""

from __future__ import annotations

from dataclasses import dataclass

from shared.config import ConfigError, option
from shared.discovery.endpoint import parse_endpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoveryOptions:
    """Options of every part that looks for others."""

    redis: str = option(
        "",
        "Redis in which the parts find each other: redis://HOST:PORT, rediss:// for TLS, or "
        "redis+sentinel://HOST:PORT,HOST:PORT/NAME (rediss+sentinel://). A database number can follow: redis://HOST/2.",
    )
    redis_prefix: str = option("quire", "Prefix of the keys in Redis. Parts with another prefix are not found.")
    redis_username: str = option("", "ACL user at Redis. If left out, Redis' default user.")
    redis_password: str = option("", "Password at Redis.", secret=True)
    redis_sentinel_password: str = option("", "Password at the Sentinels, if they need one.", secret=True)
    redis_ca: str = option("", "File of the CA certificates that sign Redis' certificate. If left out, the system's.")

    def __post_init__(self) -> None:
        if self.redis:
            parse_endpoint(self.redis)
        elif self.redis_username or self.redis_ca:
            name = "--redis-username" if self.redis_username else "--redis-ca"
            raise ConfigError(f"{name} is set without --redis: add --redis, or leave {name} out")
        if self.redis_ca and not self.redis.startswith("rediss"):
            raise ConfigError("--redis-ca is for TLS: use rediss:// in --redis")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartOptions(DiscoveryOptions):
    """Options of every part that others look for."""

    advertise: str = option(
        "",
        "Address under which other parts reach this one, host:port with a name or an IP address; it is registered in "
        "Redis. Default: the first --listen address. If that is a wildcard such as 0.0.0.0, the local address of the "
        "connection to Redis.",
    )

    def __post_init__(self) -> None:
        DiscoveryOptions.__post_init__(self)
        if self.advertise and not self.redis:
            raise ConfigError("--advertise is set without --redis: add --redis, or leave --advertise out")
        host, _, port = self.advertise.rpartition(":")
        if self.advertise and not self.advertise.startswith("unix:") and not (host and port.isdigit()):
            raise ConfigError(f"--advertise is {self.advertise!r}: use host:port or unix:/path")
