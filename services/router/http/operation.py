"""Description of one method of one HTTP path. Each API's package lists its operations in `paths.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.descriptor import Descriptor
from pydantic import BaseModel

from services.router.http.replies import ErrorReply


@dataclass(frozen=True, slots=True)
class Example:
    """An example request. `value`: the fields of the body and the parameters of the path, by their names."""

    summary: str
    value: Mapping[str, Any]


# The type of a JSON value: a pydantic model, or a protobuf message that the gateway converts to JSON.
Shape = type[BaseModel] | Descriptor


@dataclass(frozen=True, slots=True)
class Operation:
    # GET or POST.
    verb: str
    # Path with parameters as in OpenAPI: /v1/models/{model}.
    path: str
    # The operationId, which is unique in the OpenAPI document.
    name: str
    # Name of the API that the operation belongs to.
    tag: str
    summary: str
    description: str = ""
    # Type of the request's JSON; None: no body.
    body: Shape | None = None
    # Type of an answer's JSON.
    reply: Shape | None = None
    # Whether the answer is an array of `reply`.
    is_array: bool = False
    # Type of each event's JSON in a streamed answer; None: the operation does not stream.
    event: type[BaseModel] | None = None
    event_type: str = "text/event-stream"
    # Type of an error's JSON.
    error: type[BaseModel] = ErrorReply
    # Content type of an answer that does not stream.
    content_type: str = "application/json"
    # Content type of the binary answer that a request can ask for in place of JSON; empty: there is none.
    binary_type: str = ""
    # Description of each path parameter, by name.
    parameters: Mapping[str, str] = field(default_factory=dict)
    examples: tuple[Example, ...] = ()
    # Whether requests need an API key if the router is configured with API keys.
    needs_key: bool = True
    # Whether requests name a model. A request that names an unknown model gets the answer 404.
    names_model: bool = False
    # Whether the answer is always 404, because the server stores no objects of the requested kind.
    is_always_missing: bool = False
    # Whether the router can refuse requests with 429 because of overload.
    may_overload: bool = False

    def path_of(self, example: Example) -> str:
        """Returns the path with its parameters replaced by the example's values."""
        return self.path.format(**{name: example.value[name] for name in self.parameters})

    def body_of(self, example: Example) -> dict[str, Any]:
        """Returns the example's body: all of its values except the path's parameters."""
        return {name: value for name, value in example.value.items() if name not in self.parameters}
