"""Long texts of limited length fill the lexer that all outputs of a grammar share. Each goes on with one of its own."""

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
from tests.fakes.waiting import HANG_S, wait_until

TOKENIZER = Path(__file__).parents[4] / "quire/models/quire-chat/tokenizer.json"
STORY = "Once upon a time there was a fox, who ran. " * 400
# Schema of a text with more characters than a lexer has room for.
LONG_TEXT = {"type": "string", "maxLength": 16_000}


class Worker:
    """Writes given texts. `num_own`: by slot, how often its output got a grammar of its own."""

    def __init__(self, schema: dict[str, Any], num_slots: int = 1) -> None:
        self.tokenizer = Tokenizer.from_file(str(TOKENIZER))
        size = self.tokenizer.get_vocab_size()
        self.grammars = Grammars(TOKENIZER.read_bytes(), size, ())
        self.slots = SlotConstraints(num_slots, size, self.grammars)
        self.grammar = Structure(StructureKind.JSON_SCHEMA, json.dumps(schema), "").to_grammar()
        self.written: list[list[int]] = [[] for _ in range(num_slots)]
        self.num_own = [0] * num_slots

    def admit(self, slot: int, output: list[int]) -> str | None:
        prompt, first = np.zeros(1, np.uint32), np.zeros(1, np.uint32)
        tokens = np.concatenate([prompt, np.array(output, np.uint32)])
        constraints = TokenConstraints(grammar=self.grammar)
        sequence = GeneratingSequence(1, slot, tokens, 1, 0, first, SamplingParams(), 0, constraints=constraints)
        return self.slots.admit(sequence)

    def write(self, *texts: str, has_own: bool = True) -> str:
        """Generates a text in each slot, all at once. Returns why one of them fails; empty if none does. `has_own`:
        whether outputs can have grammars of their own."""
        rows = list(range(len(texts)))
        to_write = [self.tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
        self.written = [[] for _ in texts]
        for slot in rows:
            if refused := self.admit(slot, []):
                return refused
        while rows:
            mask = self.slots.mask(np.array(rows), torch.device("cpu"))
            assert mask is not None
            for row, slot in enumerate(rows.copy()):
                failure = self.slots.failure(slot, 1)
                if failure is not None and not (failure.needs_own_grammar and has_own):
                    return failure.message
                if failure is not None:
                    output = np.array(self.written[slot], np.uint32)
                    if problem := self.grammars.prepare_own(self.grammar, output).exception(HANG_S):
                        return str(problem)
                    assert self.admit(slot, self.written[slot]) is None
                    self.num_own[slot] += 1
                    continue
                token_id = to_write[slot][len(self.written[slot])]
                assert mask.bits[row, token_id // 32] >> token_id % 32 & 1, "the grammar refuses the text"
                self.slots.draw(np.array([slot]))
                self.slots.observe(slot, 1, token_id)
                self.written[slot].append(token_id)
                if len(self.written[slot]) == len(to_write[slot]):
                    rows.remove(slot)
        return ""


def test_a_long_text_goes_on_with_a_lexer_of_its_own() -> None:
    worker = Worker(LONG_TEXT)
    assert worker.write(json.dumps(STORY[:12_000])) == ""
    assert worker.num_own[0] > 1


def test_texts_at_different_places_do_not_fail_one_another() -> None:
    """Together they fill the shared lexer long before one alone would."""
    worker = Worker(LONG_TEXT, num_slots=4)
    assert worker.write(*(json.dumps("x " * 400 * slot + STORY[:4_000]) for slot in range(4))) == ""
    assert all(worker.num_own)


def test_a_full_lexer_does_not_fail_later_texts() -> None:
    worker = Worker(LONG_TEXT)
    compiled = worker.grammars.prepare(worker.grammar)
    failure = worker.write(json.dumps(STORY[:8_000]), has_own=False)
    assert "a text is too long for the 'maxLength'" in failure
    wait_until(lambda: worker.grammars.prepare(worker.grammar) is not compiled)
    assert worker.write(json.dumps(STORY[:3_000]), has_own=False) == ""


def test_a_text_fails_once_lexers_of_its_own_fill_quickly() -> None:
    worker = Worker({"type": "string", "maxLength": 40_000})
    failure = worker.write(json.dumps(STORY + STORY))
    assert "a text is too long for the 'maxLength'" in failure
    assert len(worker.written[0]) > 256 * worker.num_own[0], "a new lexer has brought less than it costs"
    assert len(worker.tokenizer.decode(worker.written[0])) > 16_000


def test_a_pattern_that_takes_too_long_to_match_fails_alone() -> None:
    """Its lexer cannot even read the output again."""
    worker = Worker({"type": "string", "pattern": "^([a-z ]{0,40}x|[a-z ]{0,41}y|[a-z ]{0,43}z){0,300}$"})
    assert (
        worker.write(json.dumps("sa and so x and z " * 160 + "x"))
        == "a 'pattern' or 'maxLength' takes too long to match"
    )
    assert worker.written[0], "it fails while it is written"


def test_compilations_for_single_outputs_are_bounded_and_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker({"type": "string"})
    monkeypatch.setattr(grammars, "_MAX_OWN", 2)
    outputs = [np.array(worker.tokenizer.encode('"' + word).ids, np.uint32) for word in ("a", "b", "c")]
    for output in outputs:
        worker.grammars.prepare_own(worker.grammar, output).result(HANG_S)
    assert [worker.grammars.has_own(worker.grammar, output) for output in outputs] == [False, True, True]
    assert worker.grammars.take_own(worker.grammar, outputs[1]) is not None
    assert worker.grammars.take_own(worker.grammar, outputs[1]) is None, "its sequence advances it"
    worker.grammars.forget_own()
    assert not worker.grammars.has_own(worker.grammar, outputs[2])


def test_an_output_that_its_grammar_refuses_is_said_at_once() -> None:
    worker = Worker({"type": "integer"})
    output = np.array(worker.tokenizer.encode('"no number"').ids, np.uint32)
    prepared = worker.grammars.prepare_own(worker.grammar, output)
    assert isinstance(prepared.exception(HANG_S), shared.grammar.GrammarError)
    assert worker.grammars.take_own(worker.grammar, output) is None


def test_a_grammar_that_cannot_be_compiled_is_not_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    worker, compiled = Worker({"type": "string"}), []

    def compile_grammar(grammar: str, tokenizer: Any) -> Any:
        compiled.append(grammar)
        return shared.grammar.compile_grammar(grammar, tokenizer)

    monkeypatch.setattr(grammars, "compile_grammar", compile_grammar)
    usable, worker.grammar = worker.grammar, "no grammar"
    assert "failed" in worker.write("x")
    worker.grammars.renew("never seen")
    worker.grammar = usable
    assert worker.write('"x"') == ""  # the compiling thread has done all that came before
    assert compiled == ["no grammar", usable]
