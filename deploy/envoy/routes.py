"""The HTTP paths that the gateway knows, read from the annotations of OpenAIService: none is written down twice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from google.api import annotations_pb2

from quire.openai.v1 import openai_pb2


@dataclass(frozen=True, slots=True)
class HttpRoute:
    """`match` is Envoy's word for how `path` is compared: `path` for all of it, `prefix` for its beginning."""

    match: str
    path: str
    methods: tuple[str, ...]


def service_name() -> str:
    return str(_service().full_name)


def http_routes() -> tuple[HttpRoute, ...]:
    """Every path with the methods it takes, whole paths first. Raises ValueError for a path template of another form
    than `/a/b` or `/a/{name=**}`."""
    methods: dict[tuple[str, str], list[str]] = {}
    for method in _service().methods:
        rule = method.GetOptions().Extensions[annotations_pb2.http]
        for binding in (rule, *rule.additional_bindings):
            verb = binding.WhichOneof("pattern")
            template = getattr(binding, verb)
            head, brace, variable = template.partition("{")
            if brace and not variable.endswith("=**}"):
                raise ValueError(f"{method.full_name}: the gateway knows no path template like {template}")
            methods.setdefault(("prefix" if brace else "path", head), []).append(verb.upper())
    routes = (HttpRoute(match, path, tuple(verbs)) for (match, path), verbs in methods.items())
    return tuple(sorted(routes, key=lambda route: (route.match != "path", -len(route.path))))


def _service() -> Any:
    return openai_pb2.DESCRIPTOR.services_by_name["OpenAIService"]
