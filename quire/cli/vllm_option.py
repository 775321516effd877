"""Describes a vLLM option that Quire does not have: the values that Quire accepts, and the error or note for other
values."""

from __future__ import annotations

import argparse
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from shared.option_parser import StoreItems, StoreJson

# Special entries of VllmOption.accepted. MODEL accepts the name or path of the served model; NO_VALUE accepts the flag
# without a value.
MODEL = "the model"
NO_VALUE = "no value"


class Form(Enum):
    SWITCH = "switch"
    VALUE = "value"
    VALUES = "values"
    JSON = "JSON"
    OPTIONAL = "a value or none"


@dataclass(frozen=True, slots=True)
class VllmOption:
    """A vLLM option. `accepted`: the values that match Quire's behaviour. Any other value stops the start with the
    error `refusal`. If `refusal` is empty, the start continues and prints `note`, the reason why the option has no
    effect."""

    name: str  # name of the flag without the leading dashes
    form: Form
    accepted: Collection[object] = ()
    refusal: str = ""
    note: str = ""
    short: str | None = None

    @property
    def key(self) -> str:
        return self.name.replace("-", "_")

    def add_to(self, parser: argparse._ActionsContainer) -> None:
        """Adds the option as a flag that --help does not show."""
        flags = [form for form in (self.short, f"--{self.name}") if form]
        options: dict[str, Any] = {"dest": self.key, "default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
        if self.form is Form.SWITCH:
            parser.add_argument(*flags, action=argparse.BooleanOptionalAction, **options)
        elif self.form is Form.VALUES:
            parser.add_argument(*flags, action=StoreItems, **options)
        elif self.form is Form.JSON:
            parser.add_argument(*flags, action=StoreJson, **options)
        elif self.form is Form.OPTIONAL:
            parser.add_argument(*flags, nargs="?", const=NO_VALUE, **options)
        else:
            parser.add_argument(*flags, **options)

    def accepts(self, value: object, model: str) -> bool:
        if MODEL in self.accepted and _is_same(str(value), model):
            return True
        return any(type(one) is type(value) and one == value for one in self.accepted) or str(value) in self.accepted


def _is_same(one: str, model: str) -> bool:
    """Returns whether two names on the hub, or two paths, mean the same model."""
    return one == model or (bool(model) and Path(one).expanduser().resolve() == Path(model).expanduser().resolve())


def switch(name: str, *accepted: bool, refusal: str = "", note: str = "", short: str | None = None) -> VllmOption:
    return VllmOption(name, Form.SWITCH, accepted, refusal, note, short)


def value(name: str, *accepted: str, refusal: str = "", note: str = "", short: str | None = None) -> VllmOption:
    return VllmOption(name, Form.VALUE, accepted, refusal, note, short)


def values(name: str, *, refusal: str = "", note: str = "") -> VllmOption:
    return VllmOption(name, Form.VALUES, (), refusal, note)


def json(name: str, *, refusal: str = "", note: str = "", short: str | None = None) -> VllmOption:
    return VllmOption(name, Form.JSON, (), refusal, note, short)


def optional(name: str, *accepted: str, refusal: str = "", note: str = "") -> VllmOption:
    return VllmOption(name, Form.OPTIONAL, accepted, refusal, note)
