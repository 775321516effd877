"""Pairs of texts become the tokens that transformers makes of them."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from services.router.embedding import InputOptions
from services.router.embedding.inputs import encode_pairs
from services.router.model import ModelInfo, ServedModel
from services.router.parameters import SamplingParams
from services.router.text import TextThreads, TokenPair
from services.router.text import Tokenizer as RouterTokenizer
from tests.integration.router.small_tokenizers import byte_level

BERT = processors.TemplateProcessing(
    single="<s> $A </s>", pair="<s> $A </s> $B:1 </s>:1", special_tokens=[("<s>", 1), ("</s>", 2)]
)
BYTES = processors.ByteLevel()
PROCESSORS: dict[str, Any] = {
    "none": None,
    "bert": processors.BertProcessing(("</s>", 2), ("<s>", 1)),
    "roberta": processors.RobertaProcessing(("</s>", 2), ("<s>", 1)),
    "template": BERT,
    "bytes": BYTES,
    "bytes, template": processors.Sequence([BYTES, BERT]),
    "template, bytes": processors.Sequence([BERT, BYTES]),
}
TEXTS = ["a", "abc", "quick jumps over", "0123456789" * 3, " "]


def library_with(processor: Any) -> Tokenizer:
    library = Tokenizer.from_str(byte_level().to_str())
    if processor is not None:
        library.post_processor = processor
    return library


def words() -> Tokenizer:
    """Knows no letter, and a blank has no tokens."""
    library = Tokenizer(models.WordLevel({"[UNK]": 0, "<s>": 1, "</s>": 2, "wet": 3, "dry": 4}, unk_token="[UNK]"))
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    library.post_processor = BERT
    return library


LIBRARIES = {name: library_with(processor) for name, processor in PROCESSORS.items()} | {"words": words()}


@pytest.mark.parametrize("limit", [None, 4, 5, 6, 9, 10, 40])
@pytest.mark.parametrize("name", LIBRARIES)
async def test_pairs_are_joined_and_cut_as_transformers_does(name: str, limit: int | None) -> None:
    library = LIBRARIES[name]
    reference = PreTrainedTokenizerFast(tokenizer_object=library)
    threads = TextThreads(1)
    tokenizer = RouterTokenizer(library.to_str().encode(), b"{}", threads)
    template = tokenizer.pair_template(add_special_tokens=True)
    parts = await tokenizer.encode_parts(TEXTS, limit)
    for one, first in zip(TEXTS, parts, strict=True):
        for other, second in zip(TEXTS, parts, strict=True):
            expected = reference(one, other, truncation=limit is not None, max_length=limit, return_token_type_ids=True)
            pair = TokenPair.of(first, second, None if limit is None else limit - template.num_special)
            assert template.join(pair) == expected["input_ids"]
            assert template.num_tokens(pair) == len(expected["input_ids"])
            types = expected["token_type_ids"]
            assert template.second_text_at(pair) == (types.index(1) if 1 in types else None)
    threads.close()


@pytest.mark.parametrize(
    ("config", "second_text_at"),
    [
        ("{}", 3),
        ('{"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}', 3),
        ('{"model_input_names": ["input_ids", "attention_mask"]}', None),
        ('{"model_input_names": null}', 3),
    ],
)
async def test_token_types_are_those_that_the_model_takes(config: str, second_text_at: int | None) -> None:
    threads = TextThreads(1)
    tokenizer = RouterTokenizer(LIBRARIES["bert"].to_str().encode(), config.encode(), threads)
    template = tokenizer.pair_template(add_special_tokens=True)
    first, second = await tokenizer.encode_parts(["a", "abc"], None)
    assert template.second_text_at(TokenPair.of(first, second, None)) == second_text_at
    threads.close()


async def test_a_text_that_is_compared_with_many_is_kept_once() -> None:
    threads = TextThreads(1)
    tokenizer = RouterTokenizer(LIBRARIES["bert"].to_str().encode(), b"{}", threads)
    info = ModelInfo("m", (), 1000, 512, frozenset(), SamplingParams(), "", 0, "", "")
    texts = ["quick " * 50], ["a"] * 100
    names = ["query"], [f"documents[{index}]" for index in range(100)]
    for options in (InputOptions(), InputOptions(truncate_prompt_tokens=20)):
        _, pairs = await encode_pairs(ServedModel(info, tokenizer, 0), texts, names, options)
        assert len(pairs) == 100
        assert all(pair.first is pairs[0].first for pair in pairs)
    threads.close()
