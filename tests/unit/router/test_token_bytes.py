"""What a grammar takes a token for is what the router makes of it: masks and text speak of the same bytes."""

from __future__ import annotations

from pathlib import Path

import pytest
from llguidance import LLTokenizer
from tokenizers import Tokenizer

from services.router.text.detokenizer import Vocabulary
from tests.integration.router.small_tokenizers import byte_fallback, byte_level

BUNDLED = Path(__file__).parents[3] / "quire/models/quire-chat/tokenizer.json"


@pytest.mark.parametrize(
    "tokenizer",
    [byte_level(), byte_fallback(), Tokenizer.from_file(str(BUNDLED))],
    ids=["byte-level", "byte fallback", "bundled"],
)
def test_a_token_has_the_same_bytes_for_both(tokenizer: Tokenizer) -> None:
    vocabulary = Vocabulary(tokenizer)
    of_grammars = LLTokenizer(tokenizer.to_str(), tokenizer.get_vocab_size() + 5)
    for token_id in range(tokenizer.get_vocab_size()):
        if not of_grammars.is_special_token(token_id):
            assert of_grammars.decode_bytes([token_id]) == vocabulary.token_bytes(token_id), token_id
    for token_id in range(tokenizer.get_vocab_size(), tokenizer.get_vocab_size() + 5):
        assert of_grammars.is_special_token(token_id) or of_grammars.decode_bytes([token_id]) == b""
