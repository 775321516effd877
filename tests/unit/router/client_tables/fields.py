"""Type of the tables' entries, and values and reasons that several tables use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from services.router.http.body import Body

USER = {"role": "user", "content": "Hi"}
FUNCTION = {"name": "add", "parameters": {"type": "object"}}
SUB: dict[str, Any] = {"name": "sub"}
CACHE = "The cache keeps what it has room for, whatever the client marks."
MATCHES = "Answers always match the schema."
NAME = "The schema is used without its name."
STYLE = "A hint of style that no open model's template takes."
TIER = "There is one tier."
STORE = "Nothing is stored."
END_USER = "It identifies the end user to the provider."
ITEM = "It repeats what an earlier answer said of the item."
CITED = "It is of an earlier answer, whose text says the same."
LOADING = "The model sees all tools at once."


@dataclass(frozen=True)
class Fields:
    """The fields of one object in a request. `inside` returns a request that contains this object with given fields."""

    object: type[Body]
    request: type[Body]
    inside: Callable[[dict[str, Any]], dict[str, Any]]
    # Fields that change the converted request or the answer. client_samples.py has a value of each.
    served: str
    # By name: why the answer is right without it.
    ignored: Mapping[str, str] = field(default_factory=dict)
    # By name: a value that asks for something.
    refused: Mapping[str, Any] = field(default_factory=dict)
    # What SDKs send as headers.
    headers: str = ""
    # By name of a served field: values that mean the same here, or nothing, with the reason in a comment. All others
    # differ.
    alike: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @property
    def names(self) -> set[str]:
        return {*self.served.split(), *self.ignored, *self.refused, *self.headers.split()}
