"""Serves metrics over HTTP."""

from __future__ import annotations

import socket
import threading
from socketserver import ThreadingMixIn
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


def start_metrics_server(host: str, port: int, registry: CollectorRegistry) -> int:
    """Serves `registry`, and the metrics of this process and its host, at http://host:port/metrics from a new thread.
    Returns the port; port 0 picks a free one.

    The format is always Prometheus' text format, which every scraper reads. Before version 3, Prometheus asks for
    OpenMetrics without UTF-8 names. For such a request, prometheus_client would rename `vllm:` to `vllm_`, and queries
    for the original names would find nothing.
    """
    from prometheus_client import ProcessCollector, make_wsgi_app

    ProcessCollector(registry=registry)
    registry.register(HostCollector())
    app = make_wsgi_app(registry)

    def in_text_format(environ: dict[str, Any], start_response: Any) -> Any:
        return app({**environ, "HTTP_ACCEPT": ""}, start_response)

    class Server(ThreadingMixIn, WSGIServer):
        daemon_threads = True
        address_family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]

    server = make_server(host, port, in_text_format, Server, _Silent)
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return int(server.server_port)


class _Silent(WSGIRequestHandler):
    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 - its base class's name
        """Logs nothing, instead of a line per scrape."""
