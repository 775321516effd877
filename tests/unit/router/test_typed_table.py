"""The table in docs/grpc.md that maps HTTP fields to fields of quire.inference.v1 matches the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from google.protobuf.descriptor import Descriptor

from quire.inference.v1 import inference_pb2
from services.router.apis.openai.chat_completions import ChatCompletionRequest
from services.router.apis.openai.completions import CompletionRequest
from services.router.apis.openai.embeddings import EmbeddingBody
from services.router.apis.openai.scoring import RerankBody, ScoreBody
from services.router.apis.openai.tokens import DetokenizeRequest, TokenizeRequest

BODIES = (
    ChatCompletionRequest, CompletionRequest, EmbeddingBody, ScoreBody, RerankBody, TokenizeRequest, DetokenizeRequest,
)  # fmt: skip
DOCUMENT = Path(__file__).parents[3] / "docs" / "grpc.md"
MESSAGES = inference_pb2.DESCRIPTOR.message_types_by_name


def table() -> dict[str, str]:
    """Maps each HTTP field to the table's text about its gRPC field."""
    section = DOCUMENT.read_text().partition("## HTTP fields and their gRPC equivalents")[2].partition("\n## ")[0]
    rows = [line.split("|")[1:3] for line in section.splitlines() if line.startswith("| `")]
    fields = [name.strip(" `") for name, _ in rows]
    assert fields == sorted(set(fields)), "the table is sorted, and no field is there twice"
    return {name.strip(" `"): place.strip() for name, place in rows}


def test_every_field_is_in_the_table_and_no_other() -> None:
    assert table().keys() == {name for body in BODIES for name in body.model_fields}


@pytest.mark.parametrize("field", table())
def test_what_the_table_names_is_there(field: str) -> None:
    place = table()[field]
    paths = re.findall(r"`([A-Z][A-Za-z]+(?:\.\w+)*)`", place)
    assert paths or place.startswith("–: ")
    for path in paths:
        name, *fields = path.split(".")
        message: Descriptor | None = MESSAGES[name]
        for part in fields:
            assert message is not None
            message = message.fields_by_name[part].message_type
