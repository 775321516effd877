"""A sequence's grammar goes on when its lexer has too many states, whichever sequence made them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tokenizers import Tokenizer

from services.router.grammar.structure import Structure, StructureKind
from services.worker.sampling import grammars as grammars_module
from services.worker.sampling.grammars import Grammars
from services.worker.sampling.sequence_grammar import SequenceGrammar
from shared.grammar import GrammarError, LexerStatesError, compile_grammar

TOKENIZER = Path(__file__).parents[4] / "quire/models/quire-chat/tokenizer.json"
TEXT = "Once upon a time there was a fox, who ran and ran. "
# A string of this length has more lexer states than are allowed.
LONG = 6_000


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(TOKENIZER))


@pytest.fixture
def grammars(tokenizer: Tokenizer) -> Grammars:
    return Grammars(TOKENIZER.read_bytes(), tokenizer.get_vocab_size(), ())


def grammar_of(schema: Any) -> str:
    return Structure(StructureKind.JSON_SCHEMA, json.dumps(schema), "").to_grammar()


TWO_TEXTS = {
    "type": "object",
    "properties": {name: {"type": "string", "maxLength": LONG} for name in "ab"},
    "additionalProperties": False,
}


def mask_of(grammar: SequenceGrammar, tokenizer: Tokenizer) -> NDArray[np.uint8]:
    """Returns [num_words × 32], 1 for each token that can follow."""
    words = np.zeros(-(-tokenizer.get_vocab_size() // 32), np.uint32)
    grammar.write_mask(words.ctypes.data, words.nbytes)
    return np.unpackbits(words.view(np.uint8), bitorder="little")


def write(grammar: SequenceGrammar, text: str, tokenizer: Tokenizer) -> list[int]:
    """Advances by the text's tokens, each of which the mask must allow."""
    token_ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    for token_id in token_ids:
        assert mask_of(grammar, tokenizer)[token_id]
        grammar.advance(token_id)
    return token_ids


def test_a_long_string_is_written_up_to_its_limit(grammars: Grammars, tokenizer: Tokenizer) -> None:
    source = grammar_of({"type": "string", "maxLength": LONG})
    grammar = SequenceGrammar(grammars, source, [])
    first = grammars.get(source)
    write(grammar, '"' + (TEXT * LONG)[:LONG], tokenizer)
    assert grammars.get(source) is not first
    assert [tokenizer.id_to_token(int(one)) for one in np.flatnonzero(mask_of(grammar, tokenizer))] == ['"']
    write(grammar, '"', tokenizer)


def test_the_states_of_one_sequence_do_not_fail_another(grammars: Grammars, tokenizer: Tokenizer) -> None:
    source = grammar_of(TWO_TEXTS)
    text = (TEXT * LONG)[: LONG // 2]
    for name in "abab":
        write(SequenceGrammar(grammars, source, []), f'{{"{name}":"{text}"}}', tokenizer)


def test_a_full_lexer_fails_no_sequence_that_is_admitted(grammars: Grammars, tokenizer: Tokenizer) -> None:
    """Such as one that was preempted, or comes from another worker."""
    source = grammar_of(TWO_TEXTS)
    output = write(SequenceGrammar(grammars, source, []), f'{{"a":"{(TEXT * LONG)[:LONG]}"', tokenizer)
    mask = mask_of(SequenceGrammar(grammars, source, output), tokenizer)
    assert {tokenizer.id_to_token(int(one)) for one in np.flatnonzero(mask)} >= {",", "}"}


def test_two_sequences_in_turn_share_the_next_compilation(
    grammars: Grammars, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = []

    def counted(grammar: str, tokenizer: Any) -> Any:
        compiled.append(grammar)
        return compile_grammar(grammar, tokenizer)

    monkeypatch.setattr(grammars_module, "compile_grammar", counted)
    token_ids = tokenizer.encode('"' + (TEXT * LONG)[:LONG], add_special_tokens=False).ids
    counts = []
    for num_sequences in (1, 4):
        compiled.clear()
        source = grammar_of({"type": "string", "maxLength": LONG + num_sequences})
        sequences = [SequenceGrammar(grammars, source, []) for _ in range(num_sequences)]
        for token_id in token_ids:
            for grammar in sequences:
                assert mask_of(grammar, tokenizer)[token_id]
                grammar.advance(token_id)
        counts.append(len(compiled))
    assert counts[0] == counts[1] > 1


def test_a_grammar_that_takes_long_to_compile_is_not_compiled_again(
    grammars: Grammars, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammars_module, "_MAX_SECONDS_AGAIN", 0.0)
    grammar = SequenceGrammar(grammars, grammar_of({"type": "string", "maxLength": LONG}), [])
    with pytest.raises(LexerStatesError, match="a text is too long for the 'maxLength'"):
        write(grammar, '"' + (TEXT * LONG)[:LONG], tokenizer)


def test_a_text_that_needs_too_many_states_itself_fails(grammars: Grammars, tokenizer: Tokenizer) -> None:
    grammar = SequenceGrammar(grammars, grammar_of({"type": "string", "maxLength": 5 * LONG}), [])
    with pytest.raises(LexerStatesError, match="too long for the 'maxLength'"):
        write(grammar, '"' + (TEXT * LONG)[: 5 * LONG], tokenizer)


def test_an_output_that_breaks_the_grammar_fails(grammars: Grammars, tokenizer: Tokenizer) -> None:
    with pytest.raises(GrammarError, match="breaks the grammar"):
        SequenceGrammar(grammars, grammar_of({"type": "integer"}), tokenizer.encode("x").ids)
