"""An output that fills its grammar's lexer fails alone: later outputs of the same grammar get a new lexer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

import shared.grammar
from services.router.grammar.structure import Structure, StructureKind
from services.worker.plan import GeneratingSequence, SamplingParams, TokenConstraints
from services.worker.sampling import grammars
from services.worker.sampling.grammars import Grammars
from services.worker.sampling.slot_constraints import SlotConstraints
from tests.fakes.waiting import wait_until

TOKENIZER = Path(__file__).parents[4] / "quire/models/quire-chat/tokenizer.json"
# More characters than the lexer has states for.
LONG = 8_000
TWO_TEXTS = {"type": "object", "properties": {name: {"type": "string", "maxLength": LONG} for name in "ab"}}


class Output:
    """Writes texts as the only sequence of a worker."""

    def __init__(self) -> None:
        self.tokenizer = Tokenizer.from_file(str(TOKENIZER))
        size = self.tokenizer.get_vocab_size()
        self.grammars = Grammars(TOKENIZER.read_bytes(), size, ())
        self.slots = SlotConstraints(1, size, self.grammars)
        self.grammar = Structure(StructureKind.JSON_SCHEMA, json.dumps(TWO_TEXTS), "").to_grammar()

    def write(self, text: str) -> str:
        """Admits a sequence that generates the text. Returns why it fails; empty if it does not."""
        prompt, first = np.zeros(1, np.uint32), np.zeros(1, np.uint32)
        constraints = TokenConstraints(grammar=self.grammar)
        sequence = GeneratingSequence(1, 0, prompt, 1, 0, first, SamplingParams(), 0, constraints=constraints)
        failure = self.slots.admit(sequence) or ""
        for token_id in self.tokenizer.encode(text, add_special_tokens=False).ids:
            if not failure:
                self.slots.mask(np.array([0]), torch.device("cpu"))
                failure = self.slots.failure(0, 1)
                self.slots.draw(np.array([0]))
                self.slots.observe(0, 1, token_id)
        return failure


def test_a_text_that_fills_the_lexer_does_not_fail_later_texts() -> None:
    output = Output()
    text = "Once upon a time there was a fox, who ran. " * 300
    assert output.write(f'{{"a":"{text[:3_000]}"}}') == ""
    compiled = output.grammars.prepare(output.grammar)
    assert "a text is too long for the 'maxLength'" in output.write(f'{{"a":"{text[:LONG]}"}}')
    wait_until(lambda: output.grammars.prepare(output.grammar) is not compiled)
    assert output.write(f'{{"b":"{text[:3_000]}"}}') == ""


def test_a_grammar_that_cannot_be_compiled_is_not_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    output, compiled = Output(), []

    def compile_grammar(grammar: str, tokenizer: Any) -> Any:
        compiled.append(grammar)
        return shared.grammar.compile_grammar(grammar, tokenizer)

    monkeypatch.setattr(grammars, "compile_grammar", compile_grammar)
    usable, output.grammar = output.grammar, "no grammar"
    assert "failed" in output.write("x")
    output.grammars.renew("never seen")
    output.grammar = usable
    assert output.write('{"a":"x"}') == ""  # the compiling thread has done all that came before
    assert compiled == ["no grammar", usable]
