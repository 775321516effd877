"""Envoy's spans: where they go, and which requests have one. From OpenTelemetry's variables, as for the other parts."""

from __future__ import annotations

import ipaddress
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
_TYPES = "type.googleapis.com/envoy.extensions."
_SAMPLERS = f"{_TYPES}tracers.opentelemetry.samplers.v3."


@dataclass(frozen=True, slots=True)
class Tracing:
    """`share`: of the requests without a trace of their own that get one, 0 to 1; for others, their client has decided.
    `ca_file`: of the certificates that sign the endpoint's; empty: spans go unencrypted. `headers`: of each export.
    `has_attributes`: whether OTEL_RESOURCE_ATTRIBUTES is set, which Envoy reads itself."""

    host: str
    port: int
    share: float = 1.0
    ca_file: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    flush_ms: int = _DEFAULT_FLUSH_MS
    has_attributes: bool = False

    @property
    def provider(self) -> dict[str, Any]:
        # Envoy takes a value for a format, in which %% stands for a percent sign.
        metadata = [{"key": name, "value": value.replace("%", "%%")} for name, value in self.headers]
        service = {"envoy_grpc": {"cluster_name": CLUSTER}, "timeout": "10s", "initial_metadata": metadata}
        fields: dict[str, Any] = {
            "@type": "type.googleapis.com/envoy.config.trace.v3.OpenTelemetryConfig",
            "grpc_service": service,
            "service_name": "quire-gateway",
            "sampler": _extension(
                "parent_based", f"{_SAMPLERS}ParentBasedSamplerConfig", wrapped_sampler=self._sampler
            ),
        }
        if self.has_attributes:
            kind = f"{_TYPES}tracers.opentelemetry.resource_detectors.v3.EnvironmentResourceDetectorConfig"
            fields["resource_detectors"] = [_extension("environment", kind)]
        return {"name": "envoy.tracers.opentelemetry", "typed_config": fields}

    @property
    def _sampler(self) -> dict[str, Any]:
        if self.share >= 1:
            return _extension("always_on", f"{_SAMPLERS}AlwaysOnSamplerConfig")
        share = {"numerator": round(self.share * 1e6), "denominator": "MILLION"}
        kind = f"{_SAMPLERS}TraceIdRatioBasedSamplerConfig"
        return _extension("trace_id_ratio_based", kind, sampling_percentage=share)

    @property
    def endpoint(self) -> dict[str, Any]:
        """The cluster's address, and its encryption."""
        address = {"socket_address": {"address": self.host, "port_value": self.port}}
        entry = {"lb_endpoints": [{"endpoint": {"address": address}}]}
        fields: dict[str, Any] = {"load_assignment": {"cluster_name": CLUSTER, "endpoints": [entry]}}
        if self.ca_file:
            names = {"san_type": "IP_ADDRESS" if _is_ip(self.host) else "DNS", "matcher": {"exact": self.host}}
            validation = {"trusted_ca": {"filename": self.ca_file}, "match_typed_subject_alt_names": [names]}
            fields["transport_socket"] = _extension(
                "tls",
                f"{_TYPES}transport_sockets.tls.v3.UpstreamTlsContext",
                sni=self.host,
                common_tls_context={"validation_context": validation},
            )
        return fields


def tracing_of(variables: Mapping[str, str] = os.environ) -> Tracing | None:
    """Returns None if no endpoint is set or no request is sampled, and after a warning if spans cannot be sent."""

    def of_traces(name: str) -> str:
        return variables.get(f"OTEL_EXPORTER_OTLP_TRACES_{name}") or variables.get(f"OTEL_EXPORTER_OTLP_{name}", "")

    text, share = of_traces("ENDPOINT"), _share(variables)
    if not text or not share:
        return None
    is_insecure = of_traces("INSECURE").lower() == "true"
    try:
        url = urlsplit(text if "://" in text else f"{'http' if is_insecure else 'https'}://{text}")
        host, port = url.hostname, url.port
    except ValueError:
        host = port = None
    if not host:
        logger.warning("the gateway sends no spans: the OTLP endpoint is %r; use http://HOST:PORT", text)
        return None
    ca_file = ""
    if url.scheme == "https":
        ca_file = of_traces("CERTIFICATE") or ssl.get_default_verify_paths().cafile or ""
        if not Path(ca_file).is_file():  # Envoy would not start.
            logger.warning(
                "the gateway sends no spans: there is no file %r of CA certificates; "
                "set OTEL_EXPORTER_OTLP_CERTIFICATE to one",
                ca_file,
            )
            return None
    return Tracing(
        host,
        port or _DEFAULT_PORT,
        share,
        ca_file,
        _headers(of_traces("HEADERS")),
        _number(variables.get("OTEL_BSP_SCHEDULE_DELAY", ""), _DEFAULT_FLUSH_MS),
        bool(variables.get("OTEL_RESOURCE_ATTRIBUTES")),
    )


def _extension(name: str, kind: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "typed_config": {"@type": kind, **fields}}


def _share(variables: Mapping[str, str]) -> float:
    sampler = variables.get("OTEL_TRACES_SAMPLER", "").strip().lower().removeprefix("parentbased_")
    if sampler == "always_off":
        return 0.0
    if sampler != "traceidratio":
        return 1.0
    try:
        return min(1.0, max(0.0, float(variables.get("OTEL_TRACES_SAMPLER_ARG", "1"))))
    except ValueError:
        return 1.0


def _headers(text: str) -> tuple[tuple[str, str], ...]:
    """Leaves out what cannot be a header."""
    pairs = (entry.partition("=") for entry in text.split(",") if "=" in entry)
    headers = ((name.strip().lower(), unquote(value.strip())) for name, _, value in pairs)
    return tuple((name, value) for name, value in headers if name and name.isprintable() and value.isprintable())


def _number(text: str, default: int) -> int:
    return int(text) if text.isdecimal() and int(text) > 0 else default


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
