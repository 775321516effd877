"""Envoy's spans: where they go, and which requests have one. From OpenTelemetry's variables, as for the other parts."""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

logger = logging.getLogger(__name__)

CLUSTER = "traces"
_DEFAULT_PORT = 4317
# OpenTelemetry's default of OTEL_BSP_SCHEDULE_DELAY.
_DEFAULT_FLUSH_MS = 5000
_TLS = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext"


@dataclass(frozen=True, slots=True)
class Tracing:
    """`percent`: of the requests without a trace of their own that get one; others keep what their client decided.
    `ca_file`: of the certificates that sign the endpoint's; empty: spans go unencrypted. `headers`: of each export."""

    host: str
    port: int
    percent: float = 100.0
    ca_file: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    flush_ms: int = _DEFAULT_FLUSH_MS

    @property
    def provider(self) -> dict[str, Any]:
        metadata = [{"key": name, "value": value} for name, value in self.headers]
        service = {"envoy_grpc": {"cluster_name": CLUSTER}, "timeout": "10s", "initial_metadata": metadata}
        return {
            "name": "envoy.tracers.opentelemetry",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.config.trace.v3.OpenTelemetryConfig",
                "grpc_service": service,
                "service_name": "quire-gateway",
            },
        }

    @property
    def endpoint(self) -> dict[str, Any]:
        """The cluster's address, and its encryption."""
        address = {"socket_address": {"address": self.host, "port_value": self.port}}
        entry = {"lb_endpoints": [{"endpoint": {"address": address}}]}
        fields: dict[str, Any] = {"load_assignment": {"cluster_name": CLUSTER, "endpoints": [entry]}}
        if self.ca_file:
            names = {"san_type": "IP_ADDRESS" if _is_ip(self.host) else "DNS", "matcher": {"exact": self.host}}
            validation = {"trusted_ca": {"filename": self.ca_file}, "match_typed_subject_alt_names": [names]}
            tls = {"@type": _TLS, "sni": self.host, "common_tls_context": {"validation_context": validation}}
            fields["transport_socket"] = {"name": "envoy.transport_sockets.tls", "typed_config": tls}
        return fields


def tracing_of(variables: Mapping[str, str] = os.environ) -> Tracing | None:
    """Returns None if no endpoint is set or no request is sampled, and after a warning if spans cannot be sent."""
    text = variables.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or variables.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    if not text:
        return None
    percent = _percent(variables)
    if not percent:
        return None
    is_insecure = variables.get("OTEL_EXPORTER_OTLP_INSECURE", "").lower() == "true"
    try:
        url = urlsplit(text if "://" in text else f"{'http' if is_insecure else 'https'}://{text}")
        host, port = url.hostname, url.port
    except ValueError:
        host = port = None
    if not host:
        logger.warning("the gateway sends no spans: %r, the OTLP endpoint, is not an address", text)
        return None
    ca_file = ""
    if url.scheme == "https":
        ca_file = variables.get("OTEL_EXPORTER_OTLP_CERTIFICATE") or ssl.get_default_verify_paths().cafile or ""
        if not Path(ca_file).is_file():  # Envoy would not start.
            logger.warning("the gateway sends no spans: %r, the file of CA certificates, does not exist", ca_file)
            return None
    return Tracing(
        host,
        port or _DEFAULT_PORT,
        percent,
        ca_file,
        _headers(variables.get("OTEL_EXPORTER_OTLP_TRACES_HEADERS") or variables.get("OTEL_EXPORTER_OTLP_HEADERS", "")),
        _number(variables.get("OTEL_BSP_SCHEDULE_DELAY", ""), _DEFAULT_FLUSH_MS),
    )


def _percent(variables: Mapping[str, str]) -> float:
    sampler = variables.get("OTEL_TRACES_SAMPLER", "").removeprefix("parentbased_")
    if sampler == "always_off":
        return 0.0
    if sampler != "traceidratio":
        return 100.0
    try:
        return 100 * min(1.0, max(0.0, float(variables.get("OTEL_TRACES_SAMPLER_ARG", "1"))))
    except ValueError:
        return 100.0


def _headers(text: str) -> tuple[tuple[str, str], ...]:
    """Leaves out what cannot be a header."""
    pairs = (entry.partition("=") for entry in text.split(","))
    headers = ((name.strip().lower(), unquote(value.strip())) for name, _, value in pairs)
    return tuple((name, value) for name, value in headers if name and name.isprintable() and value.isprintable())


def _number(text: str, default: int) -> int:
    return int(text) if text.isdecimal() and int(text) > 0 else default


def _is_ip(host: str) -> bool:
    import ipaddress

    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
