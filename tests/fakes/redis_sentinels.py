"""A Redis primary with a replica and three Sentinels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import redis

from tests.fakes.ports import free_port
from tests.fakes.redis_server import RedisServer

PASSWORD = "guarded"
# Seconds that a server may take to answer a question about its role. A stopped one never answers.
_ANSWER_S = 1.0


class Sentinels:
    """The servers as processes. The first of `servers` is the primary at first."""

    def __init__(self, directory: Path, announced: Sequence[int] = ()) -> None:
        """`announced`: ports of proxies in front of the two servers, under which all others reach them. Default: the
        servers' own ports."""
        own = free_port(), free_port()
        first, second = announced or own

        def server(port: int, announced_port: int, *options: str) -> RedisServer:
            names = ("--replica-announce-ip", "127.0.0.1", "--replica-announce-port", str(announced_port))
            return RedisServer(directory, *names, *options, port=port)

        self.servers = (
            server(own[0], first),
            server(own[1], second, "--replicaof", "127.0.0.1", str(first)),
        )
        watched = (
            f"sentinel monitor main 127.0.0.1 {first} 2",
            "sentinel down-after-milliseconds main 500",
            "sentinel failover-timeout main 2000",
            f"requirepass {PASSWORD}",
            f"sentinel sentinel-pass {PASSWORD}",
        )
        self.sentinels = [RedisServer(directory, *watched, is_sentinel=True) for _ in range(3)]

    @property
    def primary(self) -> RedisServer:
        """The server that is the primary at first."""
        return self.servers[0]

    @property
    def url(self) -> str:
        return f"redis+sentinel://{','.join(sentinel.address for sentinel in self.sentinels)}/main"

    @property
    def processes(self) -> tuple[RedisServer, ...]:
        return (*self.sentinels, *self.servers)

    def is_watched(self) -> bool:
        """Whether every Sentinel knows the replica and the other Sentinels, and sees the replica connected."""
        return all(self._sees_all(sentinel) for sentinel in self.sentinels)

    def primaries(self) -> list[RedisServer]:
        """Returns the servers that say that they are the primary now. For a moment, they can be two or none."""
        return [server for server in self.servers if _is_primary(server)]

    def stop(self) -> None:
        for server in self.processes:
            server.kill()

    def _sees_all(self, sentinel: RedisServer) -> bool:
        others, replicas = (
            [dict(zip(fields[::2], fields[1::2], strict=True)) for fields in _list(sentinel, words)]
            for words in ("SENTINELS", "REPLICAS")
        )
        return [one[b"flags"] for one in (*others, *replicas)] == [b"sentinel", b"sentinel", b"slave"] and (
            replicas[0][b"master-link-status"] == b"ok"
        )


def _list(sentinel: RedisServer, what: str) -> list[list[bytes]]:
    reply = sentinel.command("SENTINEL", what, "main", password=PASSWORD)
    assert isinstance(reply, list)
    return reply


def _is_primary(server: RedisServer) -> bool:
    try:
        with server.client(timeout_s=_ANSWER_S) as client:
            return bool(client.execute_command("ROLE")[0] == b"master")
    except redis.RedisError:
        return False
