"""Serves metrics over HTTP."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from shared.metrics.process import HostCollector

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.registry import Collector


def registry_of(*collectors: Collector) -> CollectorRegistry:
    """Returns a registry with what `collectors` collect."""
    from prometheus_client import CollectorRegistry

    registry = CollectorRegistry()
    for collector in collectors:
        registry.register(collector)
    return registry


def start_metrics_server(
    host: str,
    port: int,
    registry: CollectorRegistry,
    *,
    pid: Callable[[], int] = os.getpid,
    further: Callable[[], bytes] | None = None,
) -> int:
    """Serves `registry`, and the metrics of the process `pid` and its host, at http://host:port/metrics from a new
    thread. Returns the port; port 0 picks a free one.

    `further` returns metrics that the part has from elsewhere, in Prometheus' text format. It is called in a thread of
    the scrape; if it raises OSError, the scrape fails.

    The format is always Prometheus' text format, which every scraper reads. Before version 3, Prometheus asks for
    OpenMetrics without UTF-8 names. For such a request, prometheus_client would rename `vllm:` to `vllm_`, and queries
    for the original names would find nothing.
    """
    from prometheus_client import ProcessCollector, make_wsgi_app

    ProcessCollector(registry=registry, pid=pid)
    registry.register(HostCollector())
    app = make_wsgi_app(registry)

    def answer(environ: dict[str, Any], start_response: Any) -> Any:
        if environ["PATH_INFO"] != "/metrics":
            start_response("404 Not Found", [])
            return []
        if environ["REQUEST_METHOD"] != "GET":
            start_response("405 Method Not Allowed", [("Allow", "GET")])
            return []
        environ = {**environ, "HTTP_ACCEPT": ""}
        if further is None:
            return app(environ, start_response)
        try:
            more = further()
        except OSError as error:
            start_response("503 Service Unavailable", [("Content-Type", "text/plain; charset=utf-8")])
            return [f"{error}\n".encode()]
        return [*app({**environ, "HTTP_ACCEPT_ENCODING": ""}, start_response), more]

    class Server(ThreadingMixIn, WSGIServer):
        daemon_threads = True
        address_family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]

        def server_bind(self) -> None:
            # Not as HTTPServer does it, which looks up the name of the address and so may wait for a name server.
            TCPServer.server_bind(self)
            self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
            self.setup_environ()

    server = make_server(host, port, answer, Server, _Silent)
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return int(server.server_port)


class _Silent(WSGIRequestHandler):
    timeout = 10  # seconds in which a request must arrive

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 - its base class's name
        """Logs nothing, instead of a line per scrape."""
