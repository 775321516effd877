"""The HTTP paths that the gateway knows, read from the annotations of the router's services: none is written twice."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import Any

from google.api import annotations_pb2

from quire.anthropic.v1 import anthropic_pb2
from quire.documents.v1 import documents_pb2
from quire.kserve.v1 import kserve_pb2
from quire.ollama.v1 import ollama_pb2
from quire.openai.v1 import openai_pb2

# Each with the API whose shape errors have on its paths (errors.lua).
_SERVICES: tuple[tuple[Any, str], ...] = (
    (openai_pb2.DESCRIPTOR.services_by_name["OpenAIService"], "openai"),
    (anthropic_pb2.DESCRIPTOR.services_by_name["AnthropicService"], "anthropic"),
    (ollama_pb2.DESCRIPTOR.services_by_name["OllamaService"], "ollama"),
    (documents_pb2.DESCRIPTOR.services_by_name["DocumentService"], "openai"),
    (kserve_pb2.DESCRIPTOR.services_by_name["KserveService"], "openai"),
)


@dataclass(frozen=True, slots=True)
class HttpRoute:
    """`match` is Envoy's word for how `path` is compared: `path` for all of it, `prefix` for its beginning."""

    match: str
    path: str
    methods: tuple[str, ...]
    # Whose shape errors have here.
    api: str = "openai"


def service_names() -> tuple[str, ...]:
    """The services that are called over HTTP. The first one's health says whether a router can take calls."""
    return tuple(str(service.full_name) for service, _ in _SERVICES)


def http_annotations() -> dict[str, list[tuple[str, str]]]:
    """By each method's full name its verbs and path templates, such as `GET` and `/v1/models/{model=**}`: one, and
    others that mean the same."""
    return {method.full_name: _annotations(method) for service, _ in _SERVICES for method in service.methods}


def http_routes() -> tuple[HttpRoute, ...]:
    """Every path with the methods it takes, whole paths first. Raises ValueError for a path template of another form
    than `/a/b`, `/a/{name=**}` or `/a/{name=**}/b`."""
    methods: dict[tuple[str, str, str], list[str]] = {}
    for service, api in _SERVICES:
        for verb, template in chain.from_iterable(map(_annotations, service.methods)):
            head, brace, variable = template.partition("{")
            if brace and ("=**}" not in variable or "{" in variable):
                raise ValueError(f"the gateway knows no path template like {template}")
            verbs = methods.setdefault(("prefix" if brace else "path", head, api), [])
            if verb not in verbs:
                verbs.append(verb)
    routes = (HttpRoute(match, path, tuple(verbs), api) for (match, path, api), verbs in methods.items())
    return tuple(sorted(routes, key=lambda route: (route.match != "path", -len(route.path))))


def _annotations(method: Any) -> list[tuple[str, str]]:
    rule = method.GetOptions().Extensions[annotations_pb2.http]
    return [_verb_and_path(binding) for binding in (rule, *rule.additional_bindings)]


def _verb_and_path(rule: Any) -> tuple[str, str]:
    verb = rule.WhichOneof("pattern")
    return (rule.custom.kind, rule.custom.path) if verb == "custom" else (verb.upper(), getattr(rule, verb))
