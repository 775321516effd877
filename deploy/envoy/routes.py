"""The HTTP routes of the gateway, derived from the router's proto services. A method without the annotation
google.api.http is served at its gRPC path and accepts POST.
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

# The services, each with the API whose error format its paths use (errors.lua).
_SERVICES: tuple[tuple[Any, str], ...] = (
    (openai_pb2.DESCRIPTOR.services_by_name["OpenAIService"], "openai"),
    (anthropic_pb2.DESCRIPTOR.services_by_name["AnthropicService"], "anthropic"),
    (ollama_pb2.DESCRIPTOR.services_by_name["OllamaService"], "ollama"),
    (documents_pb2.DESCRIPTOR.services_by_name["DocumentService"], "openai"),
    (kserve_pb2.DESCRIPTOR.services_by_name["KserveService"], "kserve"),
    (inference_pb2.DESCRIPTOR.services_by_name["InferenceService"], "openai"),
)

# The error format of paths by their prefix; the first match counts. `error_formats` adds the paths that have another.
API_PREFIXES = (("/v1/messages", "anthropic"), ("/api/", "ollama"), ("/v2/", "kserve"), ("/", "openai"))

# Path prefixes of gRPC calls. The gateway forwards these calls unchanged, on the same port as HTTP requests.
GRPC_PREFIXES = (
    "/quire.inference.v1.InferenceService/",
    "/inference.GRPCInferenceService/",
    "/grpc.health.v1.Health/",
    "/grpc.reflection.",
)


@dataclass(frozen=True, slots=True)
class HttpRoute:
    """A path of the HTTP API with its methods. The path can contain one variable, such as a response's id, and requests
    can add a slash at its end."""

    # The path, up to the variable if it has one.
    path: str
    # Envoy's matcher for the path alone, without conditions on headers.
    matcher: Mapping[str, Any]
    methods: tuple[str, ...]
    # The API whose error format the path uses.
    api: str = "openai"
    # Whether the path contains a variable. A POST to a path that ends in a variable can call an action that does not
    # exist, such as `/v1/responses/compact`, so the gateway answers 404 and not 405.
    is_named: bool = False
    # The part of the path after the variable, such as `/generate`, or empty.
    action: str = ""

    @property
    def taken(self) -> tuple[tuple[dict[str, Any], str], ...]:
        """Envoy's route matches for the requests that go to a router, each with the API whose error format it has."""
        types = {"POST": _BINARY} if self.path.endswith("/models/") and self.action == "/infer" else {}
        matchers = [(_exactly(method), *types.get(method, _READABLE[method])) for method in self.methods]
        shared = [(self._match(*headers, _OF_ANTHROPIC), "anthropic") for headers in matchers if self._is_shared]
        return (*shared, *((self._match(*headers), self.api) for headers in matchers))

    @property
    def _is_shared(self) -> bool:
        """Whether Anthropic's API has the path, too."""
        return self.path in ("/v1/models", "/v1/models/")

    @property
    def not_json(self) -> tuple[dict[str, Any], ...]:
        """Envoy's route matches for the POST requests whose bodies no router can read. They match every POST request to
        the path, so Envoy must check `taken` first."""
        return (self._match(_exactly("POST")),) if "POST" in self.methods else ()

    @property
    def wrong_method(self) -> dict[str, Any]:
        """Envoy's route match for requests to the path with a wrong HTTP method. It also matches requests with a right
        method, so Envoy must check `taken` and `not_json` first."""
        is_missing_action = self.is_named and not (self.action and "POST" in self.methods)
        return self._match({**_exactly("POST"), "invert_match": True}) if is_missing_action else self._match()

    def _match(self, *headers: Mapping[str, Any]) -> dict[str, Any]:
        return {**self.matcher, "headers": headers}


# Distinguishes requests of Anthropic's API from others to the same path.
_OF_ANTHROPIC = {"name": "anthropic-version", "string_match": {"safe_regex": {"regex": ".+"}}}


def _exactly(method: str) -> dict[str, Any]:
    return {"name": ":method", "string_match": {"exact": method}}


# Accepted content types of a body: JSON, none, and curl's default.
_JSON_TYPE = r"(?i)(application/([a-z0-9.+-]+\+)?json|application/x-www-form-urlencoded)?\s*(;.*)?"
# Matches gRPC-Web calls by the content type that browsers send instead of gRPC's.
GRPC_WEB = {
    "name": "content-type",
    "string_match": {"safe_regex": {"regex": r"application/grpc-web(-text)?(\+proto)?(\s*;.*)?"}},
}
NO_GRPC = {
    "name": "content-type",
    "string_match": {"prefix": "application/grpc"},
    "invert_match": True,
    "treat_missing_header_as_empty": True,
}
# For each HTTP method, header matchers that together match the requests that a router can read.
_READABLE: dict[str, tuple[dict[str, Any], ...]] = {
    "GET": (NO_GRPC,),
    "HEAD": (NO_GRPC,),
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
# Header matchers for KServe's infer requests, whose body can be JSON followed by binary tensors. Clients send this body
# with different content types, so the gateway accepts every content type.
_BINARY = _READABLE["POST"][1:]


def service_names() -> tuple[str, ...]:
    """Returns the full names of the services that are called over HTTP. Envoy's health checks of the routers ask for
    the first of them."""
    return tuple(str(service.full_name) for service, _ in _SERVICES)


def http_annotations() -> dict[str, list[tuple[str, str]]]:
    """Returns a map from each method's full name to its pairs of HTTP verb and path template, such as `GET` and
    `/v1/models/{model=**}`. All pairs of a method are equivalent. HEAD is left out, because it always equals GET
    without the body."""
    return {
        method.full_name: [(verb, path) for verb, path in _annotations(method) if verb != "HEAD"]
        for service, _ in _SERVICES
        for method in service.methods
    }


def http_routes() -> tuple[HttpRoute, ...]:
    """Returns every route with its HTTP methods, paths without variables first. Raises ValueError for a path template
    that is not of the form `/a/b`, `/a/{name}`, `/a/{name=**}` or `/a/{name=**}/b`."""
    methods: dict[tuple[str, str, str, str], list[str]] = {}
    for service, api in _SERVICES:
        for verb, template in chain.from_iterable(map(_annotations, service.methods)):
            head, brace, variable = template.partition("{")
            if brace and not re.fullmatch(r"\w+}|\w+=\*\*}(/\w+)*", variable):
                raise ValueError(f"the gateway does not support the path template {template}")
            form = "whole" if not brace else "segments" if "=**" in variable else "segment"
            # A path with an action gets its own route, because its HTTP methods can differ from those of the path
            # without the action.
            action = variable.partition("}")[2]
            verbs = methods.setdefault((form, head, action, api), [])
            if verb not in verbs:
                verbs.append(verb)
    routes = (
        HttpRoute(path, _matcher(form, path, action), tuple(verbs), api, is_named=form != "whole", action=action)
        for (form, path, action, api), verbs in methods.items()
    )
    return tuple(sorted(routes, key=lambda route: (route.is_named, -len(route.path), not route.action)))


def error_formats() -> tuple[tuple[Mapping[str, Any], str], ...]:
    """Returns Envoy's matchers of paths, each with the API whose error format the paths use. Together they match every
    path; the first match counts. A path that is itself a prefix has the prefix's format."""
    prefixes = dict(API_PREFIXES)
    others = [
        (route.matcher, route.api)
        for route in http_routes()
        if route.path not in prefixes
        and route.api != next(api for prefix, api in API_PREFIXES if route.path.startswith(prefix))
    ]
    return (*others, *(({"prefix": prefix}, api) for prefix, api in API_PREFIXES))


def path_below(prefix: str) -> str | None:
    """Returns a path of the server that is `prefix`, lies below `prefix`, or has a variable that could match `prefix`.
    Returns None if there is no such path."""
    for route in http_routes():
        if f"{route.path}/".startswith(f"{prefix}/") or (route.is_named and prefix.startswith(route.path)):
            return route.path
    grpc = (path for path in GRPC_PREFIXES if path.startswith(f"{prefix}/") or f"{prefix}/".startswith(path))
    return next(grpc, None)


def _matcher(form: str, path: str, action: str) -> dict[str, Any]:
    if action:
        return {"safe_regex": {"regex": f"{re.escape(path)}.+{re.escape(action)}/?"}}
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
