"""docs/openai-parameters.md says what becomes of every parameter, and says it as the code does."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from services.router.apis.openai.body import GenerationBody
from services.router.apis.openai.chat_completions import ChatCompletionRequest
from services.router.apis.openai.completions import CompletionRequest
from services.router.errors import ApiError, ErrorKind
from services.router.http.reader import parse_body

ROOT = Path(__file__).parents[3]
SHARED = Path(os.environ.get("QUIRE_SHARED", ROOT.parent / "shared"))
OPENAI = SHARED / "schema" / "openai-openapi.json"
REQUESTS: dict[str, tuple[type[GenerationBody], dict[str, Any]]] = {
    "chat": (ChatCompletionRequest, {"messages": [{"role": "user", "content": "x"}]}),
    "completions": (CompletionRequest, {"prompt": "x"}),
}
# vLLM 0.32's, of chats and completions, besides OpenAI's.
VLLM = {
    "use_beam_search",
    "top_k",
    "min_p",
    "repetition_penalty",
    "watermarking",
    "length_penalty",
    "stop_token_ids",
    "include_stop_str_in_output",
    "ignore_eos",
    "min_tokens",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "truncate_prompt_tokens",
    "truncation_side",
    "prompt_logprobs",
    "logprob_token_ids",
    "allowed_token_ids",
    "bad_words",
    "echo",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
    "documents",
    "chat_template",
    "chat_template_kwargs",
    "media_io_kwargs",
    "mm_processor_kwargs",
    "structured_outputs",
    "priority",
    "request_id",
    "session_id",
    "return_tokens_as_token_ids",
    "return_token_ids",
    "routed_experts_prompt_start",
    "return_token_offsets",
    "return_prompt_text",
    "mm_payload",
    "return_mm_kwargs",
    "cache_salt",
    "kv_transfer_params",
    "ec_transfer_params",
    "vllm_xargs",
    "repetition_detection",
    "stream_interval",
    "thinking_token_budget",
    "include_reasoning",
    "prompt_embeds",
    "response_format",
    "early_stopping",
}


def table() -> dict[str, dict[str, str]]:
    """By parameter: what becomes of it in chats and in completions, and what to know."""
    lines = (ROOT / "docs" / "openai-parameters.md").read_text().splitlines()
    cells = [[cell.strip() for cell in line.split("|")] for line in lines if line.startswith("| `")]
    rows = {
        name.strip("`"): {"chat": chat, "completions": completions, "note": note}
        for _, name, chat, completions, note, _ in cells
    }
    assert list(rows) == sorted(rows), "the table is sorted, and no parameter is there twice"
    assert len(rows) == len(cells)
    return rows


def handled(kind: str, name: str) -> str:
    """What the code does with a parameter whose value asks for something."""
    schema, body = REQUESTS[kind]
    if name in schema.model_fields and name != "echo":
        return "done"
    given = json.dumps(body | {name: True if name == "echo" else {"x": 1}}).encode()
    try:
        request = parse_body(given, schema)
        request.check(128)
    except ApiError as error:
        return "refused" if (error.kind, error.param) == (ErrorKind.UNSUPPORTED, name) else error.message
    if name in schema.model_fields:
        return "done"
    return "–" if request.num_ignored_fields else "ignored"


@pytest.mark.parametrize("kind", REQUESTS)
def test_the_table_says_what_the_code_does(kind: str) -> None:
    assert {name: row[kind] for name, row in table().items()} == {name: handled(kind, name) for name in table()}


def note_of(name: str) -> str:
    """As the fields' descriptions have it."""
    notes = {kind: _described(schema, name) for kind, (schema, _) in REQUESTS.items() if name in schema.model_fields}
    if len(set(notes.values())) == 1:
        return next(iter(notes.values()))
    return " ".join(
        f"{kind.capitalize().removesuffix('s')}s: {note[0].lower()}{note[1:]}" for kind, note in notes.items()
    )


def _described(schema: type[GenerationBody], name: str) -> str:
    """What it means, and its range where it has one."""
    field = schema.model_json_schema()["properties"][name]
    bounds = next((choice for choice in field.get("anyOf", ()) if "maximum" in choice), {"maximum": 2**31})
    lowest = f"Over {bounds['exclusiveMinimum']}" if "exclusiveMinimum" in bounds else bounds.get("minimum")
    has_range = lowest is not None and bounds["maximum"] < 2**31
    return str(field["description"]) + (f" {lowest} to {bounds['maximum']}." if has_range else "")


@pytest.mark.parametrize("name", sorted({name for schema, _ in REQUESTS.values() for name in schema.model_fields}))
def test_the_table_says_what_the_document_does(name: str) -> None:
    """But for where to read on."""
    assert re.sub(r" See \[[^]]*\]\([^)]*\)\.$", "", table()[name]["note"]) == note_of(name)


@pytest.mark.parametrize("kind", REQUESTS)
def test_every_field_is_in_the_table(kind: str) -> None:
    assert REQUESTS[kind][0].model_fields.keys() <= table().keys()


def test_every_parameter_of_vllm_is_in_the_table() -> None:
    assert table().keys() >= VLLM


@pytest.mark.skipif(not OPENAI.exists(), reason="OpenAI's OpenAPI document is not here")
@pytest.mark.parametrize(
    ("kind", "name"), [("chat", "CreateChatCompletionRequest"), ("completions", "CreateCompletionRequest")]
)
def test_every_parameter_of_openai_is_in_the_table(kind: str, name: str) -> None:
    schemas = json.loads(OPENAI.read_text())["components"]["schemas"]
    fields = _properties(schemas, schemas[name])
    assert len(fields) > 15
    assert {field for field in fields if table().get(field, {}).get(kind, "–") == "–"} == set()


def _properties(schemas: dict[str, Any], schema: dict[str, Any]) -> set[str]:
    """Those of the schemas that it is made of, too."""
    if "$ref" in schema:
        return _properties(schemas, schemas[schema["$ref"].rpartition("/")[2]])
    names = set(schema.get("properties", {}))
    return names.union(*(_properties(schemas, part) for part in schema.get("allOf", ())))
