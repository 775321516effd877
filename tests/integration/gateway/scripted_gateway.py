"""A gateway whose routers a test names while it runs: a line of JSON per set, [addresses, is_stale], on standard
input. The arguments are those of `quire gateway`."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator

from deploy.envoy.config import GatewayConfig
from quire.cli import gateway
from shared.config import resolve
from shared.discovery import Kind, KnownParts, Part, Parts, Registry
from shared.log import configure_logging
from shared.status import StatusReporter


class ScriptedSource:
    async def watch(self) -> AsyncIterator[Parts]:
        lines = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
        while line := await lines.readline():
            addresses, is_stale = json.loads(line)
            yield Parts({address: Part(address) for address in addresses}, is_stale)
        await asyncio.Event().wait()

    def seconds_since_answer(self) -> float:
        return 0.0


if __name__ == "__main__":
    config = resolve(GatewayConfig, sys.argv[1:], prog="scripted gateway", description="")
    configure_logging("gateway", config.log_level, config.log_format)
    routers = KnownParts(Kind.ROUTER, [ScriptedSource()])
    sys.exit(gateway.run(config, routers, Registry(config), StatusReporter(config.status_fd)))
