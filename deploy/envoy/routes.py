"""The HTTP paths that the gateway knows, read from the router's services: none is written twice. A method without an
annotation google.api.http has the path that gRPC calls it by, and takes POST.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from google.api import annotations_pb2

from quire.anthropic.v1 import anthropic_pb2
from quire.documents.v1 import documents_pb2
from quire.inference.v1 import inference_pb2
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
    (inference_pb2.DESCRIPTOR.services_by_name["InferenceService"], "openai"),
)

# By how a path begins, whose shape errors have where no path of the above is meant; the first that fits.
API_PREFIXES = (("/v1/messages", "anthropic"), ("/api/", "ollama"), ("/", "openai"))

# Reached by gRPC clients through the same port, untouched.
GRPC_PREFIXES = (
    "/quire.inference.v1.InferenceService/",
    "/inference.GRPCInferenceService/",
    "/grpc.health.v1.Health/",
    "/grpc.reflection.",
)


@dataclass(frozen=True, slots=True)
class HttpRoute:
    """A path, or with a variable at its end the beginning of one, with or without a slash after it."""

    # Up to the variable, if there is one.
    path: str
    # Envoy's matcher of the path, and of no header.
    matcher: Mapping[str, Any]
    methods: tuple[str, ...]
    # Whose shape errors have here.
    api: str = "openai"
    # Whether it is one of many things below a path, each with a name. POST of one that is not served is then no wrong
    # method but an action that there is not, such as `/v1/responses/compact`.
    is_named: bool = False

    @property
    def taken(self) -> tuple[dict[str, Any], ...]:
        """Matches of what goes to a router."""
        return tuple(self._match(_exactly(method), *_READABLE[method]) for method in self.methods)

    @property
    def not_json(self) -> tuple[dict[str, Any], ...]:
        """Matches, after those of `taken`, of bodies that no router can read."""
        return (self._match(_exactly("POST")),) if "POST" in self.methods else ()

    @property
    def wrong_method(self) -> dict[str, Any]:
        """The match of what is left."""
        return self._match({**_exactly("POST"), "invert_match": True}) if self.is_named else self._match()

    def _match(self, *headers: Mapping[str, Any]) -> dict[str, Any]:
        return {**self.matcher, "headers": headers}


def _exactly(method: str) -> dict[str, Any]:
    return {"name": ":method", "string_match": {"exact": method}}


# What a body's type may be: JSON, nothing, or what curl says of any body that it is not told of.
_JSON_TYPE = r"(?i)(application/([a-z0-9.+-]+\+)?json|application/x-www-form-urlencoded)?\s*(;.*)?"
# Matches the headers of a gRPC-Web call, whose content type browsers send in place of gRPC's own.
GRPC_WEB = {
    "name": "content-type",
    "string_match": {"safe_regex": {"regex": r"application/grpc-web(-text)?(\+proto)?(\s*;.*)?"}},
}
_NO_GRPC = {
    "name": "content-type",
    "string_match": {"prefix": "application/grpc"},
    "invert_match": True,
    "treat_missing_header_as_empty": True,
}
# By method, what the headers of a request are that a router can read.
_READABLE: dict[str, tuple[dict[str, Any], ...]] = {
    "GET": (_NO_GRPC,),
    "HEAD": (_NO_GRPC,),
    "POST": (
        {
            "name": "content-type",
            "string_match": {"safe_regex": {"regex": _JSON_TYPE}},
            "treat_missing_header_as_empty": True,
        },
        {
            "name": "content-encoding",
            "string_match": {"safe_regex": {"regex": "(?i)(identity)?"}},
            "treat_missing_header_as_empty": True,
        },
    ),
}


def service_names() -> tuple[str, ...]:
    """The services that are called over HTTP. The first one's health says whether a router can take calls."""
    return tuple(str(service.full_name) for service, _ in _SERVICES)


def http_annotations() -> dict[str, list[tuple[str, str]]]:
    """By each method's full name its verbs and path templates, such as `GET` and `/v1/models/{model=**}`: one, and
    others that mean the same. HEAD is left out, which is GET without the body wherever it is taken."""
    return {
        method.full_name: [(verb, path) for verb, path in _annotations(method) if verb != "HEAD"]
        for service, _ in _SERVICES
        for method in service.methods
    }


def http_routes() -> tuple[HttpRoute, ...]:
    """Every path with the methods it takes, whole paths first. Raises ValueError for a path template of another form
    than `/a/b`, `/a/{name}`, `/a/{name=**}` or `/a/{name=**}/b`."""
    methods: dict[tuple[str, str, str], list[str]] = {}
    for service, api in _SERVICES:
        for verb, template in chain.from_iterable(map(_annotations, service.methods)):
            head, brace, variable = template.partition("{")
            if brace and not re.fullmatch(r"\w+}|\w+=\*\*}(/\w+)*", variable):
                raise ValueError(f"the gateway knows no path template like {template}")
            form = "whole" if not brace else "segments" if "=**" in variable else "segment"
            verbs = methods.setdefault((form, head, api), [])
            if verb not in verbs:
                verbs.append(verb)
    routes = (
        HttpRoute(path, _matcher(form, path), tuple(verbs), api, is_named=form != "whole")
        for (form, path, api), verbs in methods.items()
    )
    return tuple(sorted(routes, key=lambda route: (route.is_named, -len(route.path))))


def path_below(prefix: str) -> str | None:
    """A path that is served and that requests for `prefix` and below it may mean; None if there is none."""
    for route in http_routes():
        if f"{route.path}/".startswith(f"{prefix}/") or (route.is_named and prefix.startswith(route.path)):
            return route.path
    grpc = (path for path in GRPC_PREFIXES if path.startswith(f"{prefix}/") or f"{prefix}/".startswith(path))
    return next(grpc, None)


def _matcher(form: str, path: str) -> dict[str, Any]:
    if form == "segments":
        return {"prefix": path}
    name = "" if form == "whole" else "[^/]+"
    return {"safe_regex": {"regex": f"{re.escape(path)}{name}/?"}}


def _annotations(method: Any) -> list[tuple[str, str]]:
    options = method.GetOptions()
    if not options.HasExtension(annotations_pb2.http):
        return [("POST", f"/{method.containing_service.full_name}/{method.name}")]
    rule = options.Extensions[annotations_pb2.http]
    return [_verb_and_path(binding) for binding in (rule, *rule.additional_bindings)]


def _verb_and_path(rule: Any) -> tuple[str, str]:
    verb = rule.WhichOneof("pattern")
    return (rule.custom.kind, rule.custom.path) if verb == "custom" else (verb.upper(), getattr(rule, verb))
