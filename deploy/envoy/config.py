"""The gateway's options."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from shared.config import ConfigError, option
from shared.discovery import DiscoveryOptions
from shared.message_size import DEFAULT_MAX_BODY_BYTES
from shared.root_path import check_root_path

# Timeout for a request's headers to arrive.
HEADER_SECONDS = 10
# The default of --body-timeout is FIRST_SECONDS plus the time that a body of --max-body-bytes takes at
# LEAST_BODY_BYTES_PER_SECOND. Envoy cannot enforce a minimum rate; it has one timeout for requests of every size.
FIRST_SECONDS = 30
LEAST_BODY_BYTES_PER_SECOND = 256 * 1024

# The default of --gateway-memory-mib.
DEFAULT_GATEWAY_MEMORY_MIB = 1024

# The kernel's limit.
MAX_SOCKET_PATH_BYTES = 107

# The router that the gateway uses if no option names one.
DEFAULT_ROUTER = "127.0.0.1:50051"

# Value of an option that stands for every origin, method, header or host.
ANY = "*"
# Value of --allowed-origins that stands for the origins of this machine's pages and desktop applications.
LOCALHOST = "localhost"

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/*\sA-Z]+")
# A DNS name, or `*.` and a DNS name. `*.example` means all subdomains of `example`.
_HOST = re.compile(r"(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
# A token of RFC 9110; * is a token, too.
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


@dataclass(frozen=True, slots=True)
class GatewayConfig(DiscoveryOptions):
    host: str = option("127.0.0.1", "Address to serve HTTP and gRPC on; 0.0.0.0 is every interface.")
    port: int = option(8000, "TCP port to serve on; 0 picks a free one.", minimum=0, maximum=65535)
    listen: str = option("", "Unix socket to serve on in place of host and port, unix:/path.")
    router: tuple[str, ...] | None = option(
        None,
        "Address of a router, `host:port` or `unix:/path`. Repeatable. If a host name has several addresses, "
        "all of them are used; it is looked up every second. With --redis, routers are also found there. Default: "
        "127.0.0.1:50051, or with --redis none.",
    )
    admin_port: int | None = option(
        None,
        "Loopback TCP port of Envoy's admin interface. If left out, a Unix socket in a private directory.",
        minimum=1,
        maximum=65535,
    )
    metrics_host: str = option("127.0.0.1", "Address to serve Prometheus metrics on.")
    metrics_port: int | None = option(
        None,
        "TCP port of Prometheus metrics, at /metrics: Envoy's and those of discovery. If left out, off.",
        minimum=1,
        maximum=65535,
    )
    access_log: str = option("off", "File for the access log, one JSON object per request; - is standard output.")
    concurrency: int = option(1, "Threads that serve connections.", minimum=1, maximum=256)
    max_connections: int = option(
        10_000, "Maximum number of client connections at a time; further ones are closed at once.", minimum=1
    )
    max_streams: int = option(
        10_000,
        "Maximum number of requests in progress at a time, over all connections; further ones get a 503.",
        minimum=1,
    )
    max_body_bytes: int = option(
        DEFAULT_MAX_BODY_BYTES,
        "Largest request body in bytes; larger ones get a 413, or RESOURCE_EXHAUSTED over gRPC.",
        minimum=1024,
        maximum=31 * 1024 * 1024,
    )
    body_timeout: float | None = option(
        None,
        "Seconds in which a request must arrive completely; slower ones get a 408, or DEADLINE_EXCEEDED over "
        "gRPC. Default: 30, plus 1 for each 256 KiB of --max-body-bytes.",
        minimum=0.1,
        maximum=3600,
    )
    gateway_memory_mib: int = option(
        DEFAULT_GATEWAY_MEMORY_MIB,
        "MiB of memory above which Envoy refuses new requests, and bodies that are still arriving, with a 503. "
        "Running answers go on. Envoy can use up to twice as much.",
        minimum=128,
    )
    max_header_kib: int = option(
        32, "Largest total size of a request's headers in KiB; larger ones get a 431.", minimum=4, maximum=96
    )
    allowed_hosts: tuple[str, ...] | None = option(
        None,
        "Host accepted in the Host header of requests, such as chat.example or *.example; * accepts every "
        "host. Repeatable. This machine's names and all IP addresses are always accepted. Default: only those "
        "if the gateway listens on loopback without an API key, else *.",
    )
    allowed_origins: tuple[str, ...] | None = option(
        None,
        "Origin of web pages that may use the server from a browser, such as https://chat.example; localhost: "
        "pages and desktop applications of this machine; *: all pages. Repeatable. Default: localhost, or * "
        "if quire serve has an API key.",
    )
    allowed_methods: tuple[str, ...] = option((ANY,), "HTTP method that web pages may use. Repeatable.")
    allowed_headers: tuple[str, ...] = option((ANY,), "Request header that web pages may send. Repeatable.")
    allow_credentials: bool = option(False, "Let web pages send cookies, for a proxy in front that needs them.")
    root_path: str = option(
        "", "Path prefix that a proxy in front does not remove, such as /llm. Every path is served with and without it."
    )
    router_wait: float = option(
        5.0,
        "Seconds, on average, that a request waits until a router accepts connections, such as during a restart.",
        minimum=0,
        maximum=60,
    )
    drain_delay: float = option(
        0.0,
        "Seconds after SIGTERM during which the health checks answer 503 and all requests are still served, "
        "so that load balancers stop sending. Afterwards, new connections are refused.",
        minimum=0,
        maximum=3600,
    )
    drain_timeout: float = option(
        10.0, "Seconds that requests in progress get to finish after SIGTERM.", minimum=0, maximum=3600
    )
    status_fd: int | None = option(
        None, "File descriptor for start-up status lines in JSON; set by quire serve.", minimum=0
    )
    log_level: str = option("info", "Lowest severity to log.", choices=("debug", "info", "warning", "error"))
    log_format: str = option("text", "Format of log lines.", choices=("text", "json"))

    def __post_init__(self) -> None:
        DiscoveryOptions.__post_init__(self)
        self._check_root_path()
        if self.router == ():
            raise ConfigError("--router is empty: give at least one address")
        if self.listen and not self.listen.startswith("unix:/"):
            raise ConfigError(f"--listen {self.listen}: use unix:/path, or --host and --port")
        for address in self.routers:
            endpoint_kind(address)
        for host in self.allowed_hosts or ():
            if host != ANY and not _HOST.fullmatch(host):
                raise ConfigError(
                    f"--allowed-hosts {host}: use a host's name without a port, such as chat.example or *"
                )
        for origin in self.origins:
            if origin not in (ANY, LOCALHOST, "null") and not _ORIGIN.fullmatch(origin):
                raise ConfigError(f"--allowed-origins {origin}: use scheme://host:port in lower case, or localhost")
        if self.allow_credentials and ANY in self.origins:
            raise ConfigError(
                "--allow-credentials is not possible with --allowed-origins *: any page could use its visitors' cookies"
            )
        for method in self.allowed_methods:
            if method != ANY and not re.fullmatch("[A-Z]+", method):
                raise ConfigError(f"--allowed-methods {method}: use a name in upper case, such as POST")
        for header in self.allowed_headers:
            if not _TOKEN.fullmatch(header):
                raise ConfigError(f"--allowed-headers {header}: this is not a valid header name")

    @property
    def routers(self) -> tuple[str, ...]:
        """The addresses of routers that need no Redis to be found."""
        if self.router is not None:
            return self.router
        return () if self.redis else (DEFAULT_ROUTER,)

    def _check_root_path(self) -> None:
        if not self.root_path:
            return
        check_root_path(self.root_path)
        # Imported only if a prefix is set, because deploy.envoy.routes loads the proto descriptors of every service.
        from deploy.envoy.routes import path_below

        taken = path_below(self.root_path)
        if taken is not None:
            raise ConfigError(
                f"--root-path {self.root_path}: the prefix would hide the server's own path {taken}; "
                "use another prefix, such as /llm"
            )

    @property
    def body_seconds(self) -> float:
        """The value of --body-timeout, or its default."""
        if self.body_timeout is not None:
            return self.body_timeout
        return FIRST_SECONDS + self.max_body_bytes // LEAST_BODY_BYTES_PER_SECOND

    @property
    def origins(self) -> tuple[str, ...]:
        """The value of --allowed-origins, or its default."""
        return (LOCALHOST,) if self.allowed_origins is None else self.allowed_origins


def endpoint_kind(address: str) -> str:
    """Returns the kind of a router's address: `pipe` (a Unix socket), `ip` or `name` (a DNS name). Raises ConfigError
    for an invalid address."""
    import ipaddress

    if address.startswith("unix:"):
        if not 0 < len(os.fsencode(address.removeprefix("unix:"))) <= MAX_SOCKET_PATH_BYTES:
            raise ConfigError(f"--router {address}: the path of a Unix socket has 1 to {MAX_SOCKET_PATH_BYTES} bytes")
        return "pipe"
    host, port = split_host_port(address)
    if not 0 < port < 65536:
        raise ConfigError(f"--router {address}: the port must be 1 to 65535")
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return "name"
    return "ip"


def split_host_port(address: str) -> tuple[str, int]:
    """Splits `host:port`; `[::1]:80` gives `::1` and 80. Raises ConfigError for any other form."""
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdigit():
        raise ConfigError(f"{address!r} is not an address: use host:port or unix:/path")
    return host, int(port)
