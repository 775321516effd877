"""Long texts of limited length fill the lexer that all outputs of a grammar share. Each goes on with one of its own."""

from __future__ import annotations

import contextlib
import json
import threading
import weakref
from concurrent.futures import Future
from pathlib import Path
from typing import Any
from weakref import WeakSet

import numpy as np
import pytest
import torch
from llguidance import LLMatcher
from tokenizers import Tokenizer

import shared.grammar
from services.router.grammar.structure import Structure, StructureKind
from services.worker.heap import heap_bytes
from services.worker.plan import GeneratingSequence, SamplingParams, TokenConstraints
from services.worker.sampling import grammars
from services.worker.sampling.grammar_thread import GrammarThread
from services.worker.sampling.grammars import Grammars
from services.worker.sampling.slot_constraints import SlotConstraints
from tests.fakes.waiting import HANG_S, wait_until

TOKENIZER = Path(__file__).parents[3] / "quire/models/quire-chat/tokenizer.json"
STORY = "Once upon a time there was a fox, who ran. " * 400
# Schema of a text with more characters than a lexer has room for.
LONG_TEXT = {"type": "string", "maxLength": 16_000}

needs_mallinfo2 = pytest.mark.skipif(heap_bytes() == 0, reason="this C library does not say what the heap takes")


class Worker:
    """Writes given texts. `num_own`: by slot, how often its output got a grammar of its own."""

    def __init__(self, schema: dict[str, Any], num_slots: int = 1) -> None:
        """`schema`: of the texts."""
        self.tokenizer = Tokenizer.from_file(str(TOKENIZER))
        size = self.tokenizer.get_vocab_size()
        self.grammars = Grammars(TOKENIZER.read_bytes(), size, ())
        self.slots = SlotConstraints(num_slots, size, self.grammars)
        self.set_schema(schema)
        self.written: list[list[int]] = [[] for _ in range(num_slots)]
        self.num_own = [0] * num_slots

    def set_schema(self, schema: dict[str, Any]) -> None:
        """Sets the schema of texts from now on."""
        self.grammar = Structure(StructureKind.JSON_SCHEMA, json.dumps(schema), "").to_grammar()

    def admit(self, slot: int, output: list[int], own_grammar_key: bytes = b"") -> str | None:
        prompt, first = np.zeros(1, np.uint32), np.zeros(1, np.uint32)
        tokens = np.concatenate([prompt, np.array(output, np.uint32)])
        constraints = TokenConstraints(grammar=self.grammar)
        sequence = GeneratingSequence(
            1, slot, tokens, 1, 0, first, SamplingParams(), 0, constraints=constraints, own_grammar_key=own_grammar_key
        )
        return self.slots.admit(sequence)

    def prepare(self, key: bytes, output: list[int]) -> Future[LLMatcher]:
        return self.grammars.prepare_own(key, self.grammar, np.array(output, np.uint32))

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
                    if problem := self.prepare(b"%d" % slot, self.written[slot]).exception(HANG_S):
                        return str(problem)
                    assert self.admit(slot, self.written[slot], b"%d" % slot) is None
                    assert self.grammars.own(b"%d" % slot) is None, "the sequence has not taken it"
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
    output = worker.tokenizer.encode('"a').ids
    for key in (b"a", b"b", b"c"):
        worker.prepare(key, output).result(HANG_S)
    assert [worker.grammars.own(key) is not None for key in (b"a", b"b", b"c")] == [False, True, True]
    assert worker.grammars.take_own(b"b") is not None
    assert worker.grammars.take_own(b"b") is None, "its sequence advances it"
    worker.grammars.forget_own()
    assert worker.grammars.own(b"c") is None


@needs_mallinfo2
def test_grammars_with_full_lexers_are_dropped_before_they_take_much_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes 12 MB. All are compiled first, so that none is compiled while their lexers grow."""
    monkeypatch.setattr(grammars, "MAX_HEAP_GROWTH", 40 << 20)
    monkeypatch.setattr(grammars, "_NUM_KEPT", 2)
    monkeypatch.setattr(grammars, "_USES_PER_MEASUREMENT", 1)
    worker = Worker(LONG_TEXT)
    before = heap_bytes()
    schemas = [{**LONG_TEXT, "minLength": number} for number in range(8)]
    for schema in schemas:
        worker.set_schema(schema)
        assert worker.write('"some text"') == ""
    for schema in schemas:
        worker.set_schema(schema)
        assert worker.write(json.dumps(STORY[:3_900]), has_own=False) == ""
    worker.grammars._thread.run(lambda: None).result(HANG_S)
    assert 2 < len(worker.grammars._compiled) < 6
    assert heap_bytes() - before < 80 << 20


class FakeMatcher:
    pass


class FakeHeap:
    """Grammars take 100 MB each. `other`: what something else takes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.other = 0
        self._alive: WeakSet[Any] = WeakSet()
        monkeypatch.setattr(grammars, "heap_bytes", lambda: self.other + (len(self._alive) * 100 << 20))
        monkeypatch.setattr(grammars, "compile_grammar", self._compile)
        monkeypatch.setattr(grammars, "_NUM_KEPT", 2)

    def _compile(self, *_: object) -> Any:
        matcher = FakeMatcher()
        self._alive.add(matcher)
        return matcher


def test_a_grammar_that_a_sequence_has_is_shared_although_the_cache_has_dropped_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    FakeHeap(monkeypatch)
    cache = Worker({"type": "string"}).grammars
    used, unused = cache.prepare("used"), weakref.ref(cache.prepare("unused"))
    for number in range(40):
        cache.prepare(str(number)).result(HANG_S)
    assert "used" not in cache._compiled
    assert unused() is None
    assert cache.prepare("used") is used
    # Once its lexer has failed, it is not shared any more.
    for number in range(40):
        cache.prepare(f"again {number}").result(HANG_S)
    cache.renew("used", used)
    assert cache.prepare("used") is not used


def test_a_grammar_that_waits_for_its_compilation_keeps_none_from_being_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heap = FakeHeap(monkeypatch)
    cache = Worker({"type": "string"}).grammars
    for number in range(10):
        cache.prepare(str(number)).result(HANG_S)
    begins = threading.Event()
    cache._thread.run(begins.wait)
    waiting = [cache.prepare(name) for name in ("a", "b", "c")]
    for number in range(10):
        cache.prepare(str(number))
    heap.other = 1600 << 20
    begins.set()
    waiting[0].result(HANG_S)
    cache._thread.run(lambda: None).result(HANG_S)
    assert set(map(str, range(6))).isdisjoint(cache._compiled)


@needs_mallinfo2
def test_memory_that_something_else_takes_does_not_keep_grammars_from_being_shared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(grammars, "MAX_HEAP_GROWTH", 40 << 20)
    monkeypatch.setattr(grammars, "_NUM_KEPT", 2)
    worker = Worker({"type": "string"})

    def compile_all() -> int:
        """Returns the number of cached grammars."""
        for number in range(5):
            worker.set_schema({"type": "string", "maxLength": 10 + number})
            assert worker.write('"x"') == ""
        return len(worker.grammars._compiled)

    assert compile_all() == 5
    taken = bytearray(400 << 20)
    worker.set_schema({"type": "integer"})
    assert worker.write("1") == ""
    assert len(worker.grammars._compiled) == 2, "those that were used last"
    assert compile_all() == 6
    del taken


def test_an_output_that_its_grammar_refuses_is_said_at_once() -> None:
    worker = Worker({"type": "integer"})
    prepared = worker.prepare(b"a", worker.tokenizer.encode('"no number"').ids)
    assert isinstance(prepared.exception(HANG_S), shared.grammar.GrammarError)
    assert worker.grammars.own(b"a") is None


def test_a_grammar_that_cannot_be_compiled_is_not_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    worker, compiled = Worker({"type": "string"}), []

    def compile_grammar(grammar: str, tokenizer: Any) -> Any:
        compiled.append(grammar)
        return shared.grammar.compile_grammar(grammar, tokenizer)

    monkeypatch.setattr(grammars, "compile_grammar", compile_grammar)
    usable, worker.grammar = worker.grammar, "no grammar"
    assert "failed" in worker.write("x")
    for one in (worker.grammar, "never seen"):
        worker.grammars.renew(one, Future())
    worker.grammar = usable
    assert worker.write('"x"') == ""  # the compiling thread has done all that came before
    assert compiled == ["no grammar", usable]


def test_a_renewal_that_ends_at_once_blocks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the other thread had done all of it before the caller goes on."""
    worker = Worker({"type": "string"})
    compiled = worker.grammars.prepare(worker.grammar)
    compiled.result(HANG_S)
    run = worker.grammars._thread.run

    def run_all(job: Any) -> Any:
        future = run(job)
        with contextlib.suppress(TimeoutError):
            future.result(0.5)  # the job may need a lock that the caller holds
        return future

    monkeypatch.setattr(worker.grammars._thread, "run", run_all)
    renewing = threading.Thread(target=worker.grammars.renew, args=(worker.grammar, compiled), daemon=True)
    renewing.start()
    renewing.join(HANG_S)
    assert not renewing.is_alive()
    wait_until(lambda: worker.grammars.prepare(worker.grammar) is not compiled)
    renewed = worker.grammars.prepare(worker.grammar)
    worker.grammars.renew(worker.grammar, compiled)
    assert worker.grammars.prepare(worker.grammar) is renewed, "it has been renewed since"


def test_later_jobs_wait_but_not_for_ever() -> None:
    thread, begins, done = GrammarThread(), threading.Event(), []
    thread.run(begins.wait)
    jobs = [thread.run_later(lambda: done.append("later"))]
    jobs += [thread.run(lambda number=number: done.append(number)) for number in range(5)]  # type: ignore[misc]
    begins.set()
    for job in jobs:
        job.result(HANG_S)
    assert done == [0, 1, "later", 2, 3, 4]
