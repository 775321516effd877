"""Fields for structured output: OpenAI's `response_format`, and the fields of vLLM, llama.cpp, SGLang and TGI."""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import BaseModel, Field, Tag

from services.router.apis.openai.response_format import (
    ResponseFormat,
    TypedValue,
    exclusive,
    schema_structure,
)
from services.router.errors import ApiError, ErrorKind
from services.router.grammar import MAX_STRUCTURE_CHOICES, Structure, StructureKind
from services.router.http import Body, union


def _schema_kind(value: object) -> str | None:
    return "#text" if isinstance(value, str) else "#schema" if isinstance(value, dict | bool) else None


def _grammar_kind(value: object) -> str | None:
    return "#text" if isinstance(value, str) else "#typed" if isinstance(value, dict) else None


# A JSON schema, as an object or, like in vLLM, as JSON text.
Schema = Annotated[Annotated[str, Tag("#text")] | Annotated[Any, Tag("#schema")], union(_schema_kind, "a JSON schema")]
Choices = Annotated[list[str], Field(min_length=1, max_length=MAX_STRUCTURE_CHOICES)]


class StructuredOutputs(Body):
    """vLLM's field `structured_outputs`, which combines vLLM's `guided_` fields."""

    # These fields control vLLM's implementation, and have no effect in Quire.
    known_extras = frozenset(
        {"disable_fallback", "disable_any_whitespace", "disable_additional_properties", "whitespace_pattern"}
        | {"_backend", "_backend_was_auto"}
    )

    json_: Schema | None = Field(
        None, alias="json", description="JSON schema that the answer must match, as an object or as a JSON string."
    )
    regex: str | None = Field(None, description="Regular expression that the whole answer must match.")
    choice: Choices | None = Field(None, description="Strings of which the answer must be one.")
    grammar: str | None = Field(None, description="Grammar that the answer must match, in Lark or GBNF notation.")
    json_object: bool | None = Field(None, description="Whether the answer must be a JSON object.")
    structural_tag: Any = Field(None, description="Not supported.")

    def structures(self) -> list[Structure]:
        """Returns the structures that the fields require. Raises ApiError."""
        path = "structured_outputs."
        if self.structural_tag is not None:
            param = f"{path}structural_tag"
            raise ApiError(ErrorKind.UNSUPPORTED, f"'{param}' is not supported by this server.", param)
        return _structures(path, self.json_, self.regex, self.choice, self.grammar, is_object=self.json_object)


class StructureFields(BaseModel):
    """Mixin for the bodies of generation requests. At most one of these fields can require a structure."""

    response_format: ResponseFormat | None = Field(
        None,
        description=(
            "Format of the answer: `text`, `json_object` or `json_schema`, also in the forms of llama.cpp and TGI."
        ),
    )
    structured_outputs: StructuredOutputs | None = Field(None, description="vLLM's newer form of the `guided_` fields.")
    guided_json: Schema | None = Field(
        None, description="JSON schema that the answer must match, as an object or as a JSON string."
    )
    guided_regex: str | None = Field(None, description="Regular expression that the whole answer must match.")
    guided_choice: Choices | None = Field(None, description="Strings of which the answer must be one.")
    guided_grammar: str | None = Field(
        None, description="Grammar that the answer must match, in Lark or GBNF notation."
    )
    guided_json_object: bool | None = Field(None, description="Whether the answer must be a JSON object.")
    # The same fields under other servers' names. Empty texts have no effect, because clients of those servers send them
    # for fields that are not used.
    json_schema: Schema | None = Field(None, description="llama.cpp's and SGLang's name of `guided_json`.")
    regex: str | None = Field(None, description="SGLang's name of `guided_regex`.")
    ebnf: str | None = Field(None, description="SGLang's name of `guided_grammar`.")
    grammar: (
        Annotated[
            Annotated[str, Tag("#text")] | Annotated[TypedValue, Tag("#typed")],
            union(_grammar_kind, "a grammar, or an object with a type and a value"),
        ]
        | None
    ) = Field(None, description="llama.cpp's name of `guided_grammar`; also TGI's object with `type` and `value`.")

    def structure(self) -> Structure | None:
        """Returns the required structure of the answer, if any. Raises ApiError if several are given."""
        given = _structures(
            "guided_", self.guided_json, self.guided_regex, self.guided_choice, self.guided_grammar,
            is_object=self.guided_json_object,
        )  # fmt: skip
        given += self._by_other_names()
        if self.structured_outputs is not None:
            given += self.structured_outputs.structures()
        if self.response_format is not None and (structure := self.response_format.structure()) is not None:
            given.append(structure)
        if len(given) > 1:
            raise exclusive(given[1].param, given[0].param)
        return given[0] if given else None

    def _by_other_names(self) -> list[Structure]:
        """Returns the structures that the request sets in fields of other servers: llama.cpp's `grammar` and
        `json_schema`, SGLang's `json_schema`, `regex` and `ebnf`, and TGI's `grammar`."""
        given = []
        if self.json_schema is not None and self.json_schema != "":
            given.append(schema_structure(self.json_schema, "json_schema"))
        if self.regex:
            given.append(Structure(StructureKind.REGEX, self.regex, "regex"))
        if self.ebnf:
            given.append(Structure(StructureKind.GRAMMAR, self.ebnf, "ebnf"))
        if isinstance(self.grammar, TypedValue):
            given.append(self.grammar.structure())
        elif self.grammar:
            given.append(Structure(StructureKind.GRAMMAR, self.grammar, "grammar"))
        return given


def _structures(
    path: str, schema: Any, regex: str | None, choice: list[str] | None, grammar: str | None, *, is_object: bool | None
) -> list[Structure]:
    """Returns a structure for each argument that is set. `path`: prefix of the fields' names in the body."""
    given = []
    if schema is not None:
        given.append(schema_structure(schema, f"{path}json"))
    if regex is not None:
        given.append(Structure(StructureKind.REGEX, regex, f"{path}regex"))
    if choice is not None:
        given.append(Structure(StructureKind.CHOICE, json.dumps(choice), f"{path}choice"))
    if grammar is not None:
        given.append(Structure(StructureKind.GRAMMAR, grammar, f"{path}grammar"))
    if is_object:
        given.append(Structure(StructureKind.JSON_OBJECT, "", f"{path}json_object"))
    return given
