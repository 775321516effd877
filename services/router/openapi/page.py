"""The OpenAPI document as one HTML page without scripts, so that the page works offline and in any browser. A viewer
from PyPI would add megabytes of JavaScript to serve and to keep up to date."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from services.router.openapi.schemas import REF

_BOUNDS = {
    "minimum": "≥",
    "exclusiveMinimum": ">",
    "maximum": "≤",
    "exclusiveMaximum": "<",
    "minLength": "length ≥",
    "maxLength": "length ≤",
    "minItems": "items ≥",
    "maxItems": "items ≤",
}


def page(document: dict[str, Any]) -> str:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["type_of"] = type_of
    environment.filters["code"] = code
    environment.filters["paragraphs"] = paragraphs
    environment.filters["curl"] = curl
    operations = [
        {"verb": verb.upper(), "path": path, **operation}
        for path, verbs in document["paths"].items()
        for verb, operation in verbs.items()
    ]
    return environment.get_template("page.html.j2").render(document=document, operations=operations)


def code(text: str) -> Markup:
    """Converts one line of Markdown to HTML. Text between backticks becomes code; nothing else is markup."""
    pieces = re.split(r"`([^`]+)`", text)
    return Markup("").join(
        Markup("<code>{}</code>").format(piece) if number % 2 else escape(piece) for number, piece in enumerate(pieces)
    )


def paragraphs(text: str) -> Markup:
    """Converts Markdown to HTML paragraphs. In `text`, empty lines separate the paragraphs."""
    return Markup("\n").join(Markup("<p>{}</p>").format(code(part)) for part in re.split(r"\n\s*\n", text))


def type_of(schema: dict[str, Any]) -> Markup:
    """Describes a schema in a few words, with links to named schemas: `string or array of TextPart`."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix(REF)
        return Markup('<a href="#schema-{0}">{0}</a>').format(name)
    if "anyOf" in schema:
        return Markup(" or ").join(type_of(choice) for choice in schema["anyOf"])
    if "const" in schema or "enum" in schema:
        values = schema.get("enum", [schema.get("const")])
        return Markup(" or ").join(Markup("<code>{}</code>").format(json.dumps(value)) for value in values)
    words = escape(schema.get("type", "any JSON"))
    if "items" in schema:
        words += Markup(" of ") + type_of(schema["items"])
    if isinstance(schema.get("additionalProperties"), dict):
        words += Markup(" of ") + type_of(schema["additionalProperties"])
    bounds = [f"{sign} {schema[key]}" for key, sign in _BOUNDS.items() if key in schema]
    return words + (escape(" (" + ", ".join(bounds) + ")") if bounds else "")


def curl(operation: dict[str, Any], example: dict[str, Any]) -> str:
    """Returns a command line that sends the example. `$HOST` stands for the server's address."""
    body = json.dumps(example["value"], ensure_ascii=False).replace("'", "'\\''")
    parameters = operation.get("parameters", ())
    path = operation["path"].format(**{one["name"]: one["examples"]["example1"]["value"] for one in parameters})
    return f"curl -N \"$HOST{path}\" -H 'content-type: application/json' \\\n  -d '{body}'"
