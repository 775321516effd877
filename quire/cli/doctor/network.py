"""Checks of the ports that `quire serve` listens on, of the Hugging Face hub, and of Redis."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterator
from dataclasses import dataclass

from quire.cli.doctor.finding import Finding, ok, problem, unused, warning
from quire.cli.http_probe import ask
from shared.config import ConfigError
from shared.discovery import DiscoveryOptions, Kind, Part, Registry

# Time in which the hub and a server on this host must answer.
TIMEOUT_S = 5.0


def check_port(host: str, port: int) -> Finding:
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        _bind(host, port)
    except PermissionError:
        return problem(
            "port", f"{address} may not be used without privileges", "choose --port 8000 or another above 1023"
        )
    except OSError as error:
        if error.errno is None or isinstance(error, socket.gaierror):
            return problem("port", f"--host {host} is no address of this host: {error}", "--host 127.0.0.1 or 0.0.0.0")
        return problem("port", f"{address}: {_taken_by(host, port) or error.strerror}", f"--port {_free_port()}")
    return ok("port", f"{address} is free")


def check_metrics_ports(first: int, number: int) -> Finding:
    """Checks the ports for the metrics of `number` parts, which follow each other. One part may be running already, as
    in a container."""
    ports = range(first, first + number)
    remedy = "choose --metrics-port so that it and the next ones are free" if number > 1 else "--metrics-port 0"
    if ports[-1] > 65535:
        return problem("metrics", f"the last port would be {ports[-1]}", remedy)
    for port in ports:
        try:
            _bind("127.0.0.1", port)
        except OSError as error:
            if number == 1 and _serves_metrics(port):
                return ok("metrics", f"a part of Quire serves them at 127.0.0.1:{port}")
            return problem("metrics", f"127.0.0.1:{port}: {error.strerror}", remedy)
    words = f"the ports {first} to {ports[-1]} are" if number > 1 else f"the port {first} is"
    return ok("metrics", f"{words} free")


def _serves_metrics(port: int) -> bool:
    try:
        answer = asyncio.run(ask(f"127.0.0.1:{port}", "/metrics", timeout_s=TIMEOUT_S))
    except OSError:
        return False
    return "quire:" in answer.body or "envoy_" in answer.body


def _bind(host: str, port: int) -> None:
    """Raises OSError if a part could not listen there."""
    family, kind, protocol, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        # As Envoy does. A port that only old connections use counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(where)


def _taken_by(host: str, port: int) -> str:
    """Returns who listens on the port, if it is Quire or at least speaks HTTP."""
    try:
        answer = asyncio.run(ask(f"{host}:{port}", "/api/version", timeout_s=TIMEOUT_S))
    except OSError:
        return ""
    return "a Quire or Ollama server runs there" if '"version"' in answer.body else "another HTTP server runs there"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True, slots=True)
class Hub:
    """`address`: https://huggingface.co or HF_ENDPOINT. `is_offline`: HF_HUB_OFFLINE is set."""

    address: str
    token: str | None
    is_offline: bool

    @classmethod
    def from_environment(cls) -> Hub:
        from huggingface_hub import constants, get_token

        return cls(constants.ENDPOINT, get_token(), constants.HF_HUB_OFFLINE)


def check_hub(hub: Hub) -> Finding:
    if hub.is_offline:
        return unused("hub", "HF_HUB_OFFLINE is set: only models on this machine can be served")
    from huggingface_hub import get_session

    path = "/api/whoami-v2" if hub.token else "/api/models?limit=1"
    try:
        # As huggingface_hub asks, with its proxies and certificates, but once.
        headers = {"authorization": f"Bearer {hub.token}"} if hub.token else {}
        answer = get_session().get(hub.address + path, headers=headers, timeout=TIMEOUT_S)
    except Exception as error:
        why = (str(error) or type(error).__name__).splitlines()[0]
        remedy = "check HTTPS_PROXY and HF_ENDPOINT; models in a directory need no hub"
        return warning("hub", f"{hub.address} cannot be reached: {why}", remedy)
    if hub.token and answer.status_code in (401, 403):
        what = f"{hub.address} refuses the token ({answer.status_code})"
        return problem("hub", what, "set HF_TOKEN to a valid one, or unset it and remove that of `hf auth login`")
    if answer.status_code != 200:
        what = f"{hub.address} answers {answer.status_code}"
        return warning("hub", what, "try again later; models in a directory need no hub")
    return ok("hub", f"{hub.address} answers; {'the token is valid' if hub.token else 'no token is set'}")


def check_redis(options: DiscoveryOptions) -> Finding:
    if not options.redis:
        return unused("redis", "--redis is not set; quire serve does not need it")
    from shared.discovery.redis import RedisUnavailableError

    # The finding says what the connection would log.
    logger = logging.getLogger("shared.discovery")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        registered = asyncio.run(_registered(options))
    except ConfigError as error:
        return problem("redis", str(error), "pip install redis, or check --redis-ca")
    except RedisUnavailableError as error:
        return problem(
            "redis",
            f"{options.redis}: {error}",
            "check the address and QUIRE_REDIS_PASSWORD; the user needs the ACL rule in docs/operations.md, Discovery",
        )
    finally:
        logger.setLevel(level)
    known = ", ".join(text for kind, parts in registered.items() for text in _by_model(kind, parts))
    return ok("redis", f"{options.redis} runs the scripts; registered: {known or 'no parts'}")


async def _registered(options: DiscoveryOptions) -> dict[Kind, list[Part]]:
    registry = Registry(options)
    try:
        return await registry.registered()
    finally:
        await registry.close()


def _by_model(kind: Kind, parts: list[Part]) -> Iterator[str]:
    """For each model, yields the number of its parts of this kind, and how much fits into their KV caches."""
    for model in sorted({part.model for part in parts}):
        mine = [part for part in parts if part.model == model]
        kv_tokens = sum(part.kv_tokens for part in mine)
        yield (
            f"{len(mine)} {kind}{'s' * (len(mine) != 1)}"
            + (f" of {model}" if model else "")
            + (f" ({kv_tokens:,} tokens of KV cache)" if kv_tokens else "")
        )
