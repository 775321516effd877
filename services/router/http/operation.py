"""One method of one HTTP path, as each API's package describes those it serves (`paths.py`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.descriptor import Descriptor
from pydantic import BaseModel

from services.router.http.replies import ErrorReply


@dataclass(frozen=True, slots=True)
class Example:
    """`value`: a body, and what is put in the path's parameters, by their names."""

    summary: str
    value: Mapping[str, Any]


# What JSON is: a pydantic model, or a protobuf message that the gateway turns into JSON.
Shape = type[BaseModel] | Descriptor


@dataclass(frozen=True, slots=True)
class Operation:
    # GET or POST.
    verb: str
    # As in OpenAPI: /v1/models/{model}.
    path: str
    # The operationId: unique in the document.
    name: str
    # The API it belongs to.
    tag: str
    summary: str
    description: str = ""
    # What a request's JSON is checked by.
    body: Shape | None = None
    # The JSON of an answer.
    reply: Shape | None = None
    # Whether an answer is an array of `reply`.
    is_array: bool = False
    # The JSON of each event of an answer that streams; None: it does not stream.
    event: type[BaseModel] | None = None
    event_type: str = "text/event-stream"
    # The JSON of an error.
    error: type[BaseModel] = ErrorReply
    # Of an answer that does not stream.
    content_type: str = "application/json"
    # Of the same answer in binary form, where the request may ask for that; empty: it may not.
    binary_type: str = ""
    # Of each path parameter.
    parameters: Mapping[str, str] = field(default_factory=dict)
    examples: tuple[Example, ...] = ()
    # Whether it asks for a key where the router has some.
    needs_key: bool = True
    # Whether it names a model, which may be unknown.
    names_model: bool = False
    # Whether nothing is ever found there: the path is served for clients that ask.
    is_always_missing: bool = False
    # Whether it may be turned away because there is too much to do.
    may_overload: bool = False

    def path_of(self, example: Example) -> str:
        """The path with the example's values for its parameters."""
        return self.path.format(**{name: example.value[name] for name in self.parameters})

    def body_of(self, example: Example) -> dict[str, Any]:
        """The example without the path's parameters."""
        return {name: value for name, value in example.value.items() if name not in self.parameters}
