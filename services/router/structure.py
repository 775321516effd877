"""What an output must look like, as its request says it. Compiled to token masks where the tokens are drawn."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class StructureKind(Enum):
    # A JSON schema, as JSON.
    JSON_SCHEMA = "json_schema"
    # Any JSON object; the source is empty.
    JSON_OBJECT = "json_object"
    # A regular expression for the whole output.
    REGEX = "regex"
    # A context-free grammar in the form that vLLM's guided_grammar takes.
    GRAMMAR = "grammar"


@dataclass(frozen=True, slots=True)
class Structure:
    kind: StructureKind
    source: str = ""
