"""Where Redis is, as `--redis` says it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from shared.config import ConfigError

REDIS_PORT = 6379
SENTINEL_PORT = 26379

_SCHEME = re.compile(r"(?P<tls>rediss?)(?P<sentinel>\+sentinel)?://(?P<rest>.*)")
# IPv6 addresses are in brackets.
_HOST = re.compile(r"(\[(?P<ipv6>[0-9A-Fa-f:.%a-z]+)\]|(?P<name>[^\[\]:/?#@\s]+))(:(?P<port>[0-9]{1,5}))?")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """`addresses`: host and port of Redis; of each Sentinel if there is a `master_name`."""

    addresses: tuple[tuple[str, int], ...]
    has_tls: bool = False
    # Name under which the Sentinels know the primary; empty without Sentinel.
    master_name: str = ""
    database: int = 0


def parse_endpoint(url: str) -> Endpoint:
    """Parses the value of --redis. Raises ConfigError."""
    found = _SCHEME.fullmatch(url)
    if found is None:
        raise ConfigError(
            f"--redis is {_shown(url)!r}: use redis://, rediss://, redis+sentinel:// or rediss+sentinel://"
        )
    if "@" in found["rest"]:
        raise ConfigError(
            "--redis contains a user or password: use --redis-username and the variable QUIRE_REDIS_PASSWORD, because "
            "other users of the host can read command lines"
        )
    hosts, *path = found["rest"].rstrip("/").split("/")
    is_sentinel = bool(found["sentinel"])
    if is_sentinel and not path:
        raise ConfigError(f"--redis is {url!r}: add the name of the primary, as in redis+sentinel://HOST:26379/NAME")
    master_name = path.pop(0) if is_sentinel else ""
    database = path.pop(0) if path else "0"
    if path or not database.isdigit():
        raise ConfigError(f"--redis is {url!r}: after the host{' and the name' * is_sentinel}, use a database number")
    default_port = SENTINEL_PORT if is_sentinel else REDIS_PORT
    addresses = tuple(_address(url, host, default_port) for host in hosts.split(","))
    if not is_sentinel and len(addresses) > 1:
        raise ConfigError(f"--redis is {url!r}: several hosts need redis+sentinel://")
    return Endpoint(addresses, found["tls"] == "rediss", master_name, int(database))


def _address(url: str, text: str, default_port: int) -> tuple[str, int]:
    found = _HOST.fullmatch(text)
    if found is None:
        raise ConfigError(f"--redis is {url!r}: use host:port, not {text!r}")
    return found["ipv6"] or found["name"], int(found["port"] or default_port)


def _shown(url: str) -> str:
    """Returns the URL without what might be a password."""
    return re.sub(r"[^/]*@", "…@", url)
