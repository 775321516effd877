"""No field that an SDK can send is dropped in silence."""

from __future__ import annotations

import json
from typing import Any

import pytest

from services.router.errors import ApiError
from services.router.http.body import Body
from services.router.http.reader import parse_body
from tests.e2e.clients import request_fields
from tests.unit.router.client_fields import TABLE, Fields


def unknown_fields(found: dict[str, list[str]]) -> dict[str, set[str]]:
    """`found`: as request_fields prints them. By request: those that the table lacks."""
    missing = {name: set(names) - (TABLE[name].names if name in TABLE else set()) for name, names in found.items()}
    return {name: names for name, names in missing.items() if names}


def test_every_field_of_the_installed_sdks_is_in_the_table() -> None:
    found = request_fields.main()
    assert {"openai.chat", "anthropic.messages", "ollama.chat"} <= found.keys()
    assert unknown_fields(found) == {}


def test_a_field_that_a_new_version_brings_is_found() -> None:
    assert unknown_fields({"openai.chat": ["model", "telepathy"]}) == {"openai.chat": {"telepathy"}}


def check(request: type[Body], value: dict[str, Any]) -> None:
    """Raises ApiError, as the request's service would before it asks a scheduler."""
    body: Any = parse_body(json.dumps(value).encode(), request)
    if "check" in dir(request):
        body.check(*([128] if "n" in request.model_fields else []))
    if "to_chat" in dir(request):
        body.to_chat(*(["m"] if request.__module__.startswith("services.router.apis.ollama") else []))


@pytest.mark.parametrize("name", TABLE)
def test_the_table_says_what_the_code_does(name: str) -> None:
    fields = TABLE[name]
    declared = {info.alias or name for name, info in fields.object.model_fields.items()}
    assert set(fields.served.split()) <= declared
    check(fields.request, fields.inside({}))
    for ignored, reason in fields.ignored.items():
        assert reason.endswith(".")
        assert ignored in fields.object.known_extras, ignored
    for refused, value in fields.refused.items():
        assert _refused_param(fields, refused, value) == refused


def _refused_param(fields: Fields, name: str, value: object) -> str:
    """The last part of the name of the field that the error is about."""
    try:
        check(fields.request, fields.inside({name: value}))
    except ApiError as error:
        return (error.param or "").rpartition(".")[2]
    return f"'{name}' is not refused"
