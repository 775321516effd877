"""An embedding model's prompts are read as sentence-transformers reads them, or refused in one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from services.worker.errors import ModelError
from services.worker.pooling.config import PoolingConfig, PoolingKind, read_pooling
from services.worker.pooling.prompts import (
    MAX_ALL_PROMPTS_BYTES,
    MAX_PROMPT_CHARS,
    MAX_PROMPT_NAME_CHARS,
    MAX_PROMPTS,
    EmbeddingPrompts,
    read_prompts,
)
from tests.unit.worker.tiny_encoders import write_modules

MEAN = PoolingConfig(PoolingKind.MEAN)


def write(directory: Path, config: object) -> Path:
    content = config if isinstance(config, str) else json.dumps(config)
    (directory / "config_sentence_transformers.json").write_text(content)
    return directory


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, EmbeddingPrompts()),
        ({"prompts": None, "default_prompt_name": None}, EmbeddingPrompts()),
        ({"prompts": {}}, EmbeddingPrompts()),
        (
            {"prompts": {"query": "Instruct: find\nQuery:", "document": ""}, "default_prompt_name": None},
            EmbeddingPrompts((("query", "Instruct: find\nQuery:"), ("document", ""))),
        ),
        (
            {"prompts": {"Clustering": "é: ", "STS": None}, "default_prompt_name": "Clustering"},
            EmbeddingPrompts((("Clustering", "é: "), ("STS", "")), "Clustering"),
        ),
        # sentence-transformers gives every model these two.
        ({"default_prompt_name": "query"}, EmbeddingPrompts()),
        ({"prompts": {"passage": "p: "}, "default_prompt_name": "document"}, EmbeddingPrompts((("passage", "p: "),))),
        ({"model_type": "SentenceTransformer", "prompts": {"a": "b"}}, EmbeddingPrompts((("a", "b"),))),
        ({"model_type": "CrossEncoder", "prompts": {"a": "b"}, "default_prompt_name": "a"}, EmbeddingPrompts()),
        ({"prompts": {"n" * MAX_PROMPT_NAME_CHARS: "t" * MAX_PROMPT_CHARS}}, None),
        ({"prompts": {str(index): "t" for index in range(MAX_PROMPTS)}}, None),
    ],
)
def test_prompts_are_read(tmp_path: Path, config: dict[str, Any], expected: EmbeddingPrompts | None) -> None:
    expected = expected or EmbeddingPrompts(tuple(config["prompts"].items()))
    assert read_prompts(write(tmp_path, config), MEAN) == expected


def test_without_the_file_there_are_none(tmp_path: Path) -> None:
    assert read_prompts(tmp_path, MEAN) == EmbeddingPrompts()
    gguf = tmp_path / "model.gguf"
    gguf.touch()
    assert read_prompts(gguf, MEAN) == EmbeddingPrompts()


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ("{", "config_sentence_transformers.json cannot be read"),
        ("[]", "holds no JSON object"),
        ('{"prompts": ' + "[" * 100_000 + "]" * 100_000 + "}", "nested too deep"),
        ({"prompts": ["query: "]}, "prompts is a list of 1 values; expected an object"),
        ({"prompts": "query: "}, 'prompts is "query: "; expected an object'),
        ({"prompts": {"query": 7}}, "prompts: query is 7; expected a string"),
        ({"prompts": {"query": {"a": {}}}}, "prompts: query is an object of 1 values; expected a string"),
        ({"prompts": {"query": "\ud800"}}, "has a text of 1 characters; expected valid Unicode"),
        ({"prompts": {"\ud800": ""}}, "has a name of 1 characters; expected valid Unicode"),
        ({"prompts": {"query": "t" * (MAX_PROMPT_CHARS + 1)}}, "has a text of 4,097 characters"),
        ({"prompts": {"n" * (MAX_PROMPT_NAME_CHARS + 1): ""}}, "has a name of 257 characters"),
        ({"prompts": {str(index): "" for index in range(MAX_PROMPTS + 1)}}, "an object of 1,025 values; expected at"),
        (
            {"prompts": {f"{index:02}": "ü" * MAX_PROMPT_CHARS for index in range(64)}},
            f"have {64 * (2 * MAX_PROMPT_CHARS + 2):,} bytes; expected at most {MAX_ALL_PROMPTS_BYTES:,}",
        ),
        ({"default_prompt_name": "x"}, 'default_prompt_name is "x"; expected null or the name of one of the prompts'),
        ({"prompts": {"a": ""}, "default_prompt_name": ["a"]}, "default_prompt_name is a list of 1 values"),
        ({"model_type": 5}, "model_type is 5; expected a string"),
    ],
)
def test_a_hostile_file_is_refused_in_one_sentence(tmp_path: Path, config: object, sentence: str) -> None:
    with pytest.raises(ModelError) as refusal:
        read_prompts(write(tmp_path, config), MEAN)
    message = str(refusal.value)
    assert sentence in message
    assert "\n" not in message
    message.encode()


def test_pooling_that_leaves_prompts_out_is_refused_with_the_remedy(tmp_path: Path) -> None:
    """As INSTRUCTOR models pool. The last token is never one of the prompt."""
    write_modules(tmp_path, {"pooling_mode_mean_tokens": True, "include_prompt": False})
    pooling = read_pooling(tmp_path, "auto", PoolingKind.CLS)
    assert read_prompts(write(tmp_path, {"prompts": {"query": ""}}), pooling).texts == (("query", ""),)
    write(tmp_path, {"prompts": {"query": "query: "}})
    with pytest.raises(ModelError, match=r"\(include_prompt\), which is not supported; --pooling-type mean"):
        read_prompts(tmp_path, pooling)
    for option in ("mean", "last"):
        assert read_prompts(tmp_path, read_pooling(tmp_path, option, PoolingKind.CLS)).texts
    (tmp_path / "1_Pooling" / "config.json").write_text('{"pooling_mode": "lasttoken", "include_prompt": false}')
    assert read_prompts(tmp_path, read_pooling(tmp_path, "auto", PoolingKind.CLS)).texts


def test_include_prompt_is_true_or_false(tmp_path: Path) -> None:
    write_modules(tmp_path, {"pooling_mode_mean_tokens": True, "include_prompt": "no"})
    with pytest.raises(ModelError, match='include_prompt is "no"; expected true or false'):
        read_pooling(tmp_path, "auto", PoolingKind.CLS)
