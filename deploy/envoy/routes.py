"""The HTTP paths that the gateway knows, read from the annotations of the HTTP services: none is written down twice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from google.api import annotations_pb2

from quire.anthropic.v1 import anthropic_pb2
from quire.ollama.v1 import ollama_pb2
from quire.openai.v1 import openai_pb2

# By the API whose shape errors have on its paths (errors.lua).
_SERVICES: dict[str, Any] = {
    "openai": openai_pb2.DESCRIPTOR.services_by_name["OpenAIService"],
    "anthropic": anthropic_pb2.DESCRIPTOR.services_by_name["AnthropicService"],
    "ollama": ollama_pb2.DESCRIPTOR.services_by_name["OllamaService"],
}


@dataclass(frozen=True, slots=True)
class HttpRoute:
    """`match` is Envoy's word for how `path` is compared: `path` for all of it, `prefix` for its beginning."""

    match: str
    path: str
    methods: tuple[str, ...]
    # Whose shape errors have here.
    api: str = "openai"


def service_names() -> tuple[str, ...]:
    """The services behind the paths, OpenAI's first."""
    return tuple(str(service.full_name) for service in _SERVICES.values())


def http_routes() -> tuple[HttpRoute, ...]:
    """Every path with the methods it takes, whole paths first. Raises ValueError for a path template of another form
    than `/a/b` or `/a/{name=**}`."""
    methods: dict[tuple[str, str, str], list[str]] = {}
    for api, service in _SERVICES.items():
        for method in service.methods:
            rule = method.GetOptions().Extensions[annotations_pb2.http]
            for binding in (rule, *rule.additional_bindings):
                verb = binding.WhichOneof("pattern")
                template = getattr(binding, verb)
                head, brace, variable = template.partition("{")
                if brace and not variable.endswith("=**}"):
                    raise ValueError(f"{method.full_name}: the gateway knows no path template like {template}")
                methods.setdefault(("prefix" if brace else "path", head, api), []).append(verb.upper())
    routes = (HttpRoute(match, path, tuple(verbs), api) for (match, path, api), verbs in methods.items())
    return tuple(sorted(routes, key=lambda route: (route.match != "path", -len(route.path))))
