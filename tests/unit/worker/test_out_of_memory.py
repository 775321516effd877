"""Memory that does not suffice: at run time for a step's newest sequence, at start for a sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from services.worker.errors import ModelError
from services.worker.plan.batch import Batch
from services.worker.plan.step_plan import GeneratingSequence, Rows, StepPlan
from services.worker.startup.device_memory import Needs, measure_needs, out_of_memory_explained
from services.worker.startup.warm_up import run_largest_step
from services.worker.step.model_runner import OUT_OF_MEMORY, STEP_FAILED, ModelRunner
from shared.host_memory import GIB
from tests.unit.worker.driver import GREEDY, Driver, Request, column
from tests.unit.worker.tiny_models import make_runner, save_model

PROMPTS = [[5, 6, 7], [8, 9, 10, 11], [12, 13], [14, 15, 16, 17, 18]]


def give_room_for(runner: ModelRunner, num_rows: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Steps of more rows run out of memory, after the forward pass. Returns the rows of all attempts, as they come."""
    run, attempts = runner._forward.run, []

    def limited(batch: Batch, *arguments: Any) -> Any:
        attempts.append(len(batch.slots))
        logits = run(batch, *arguments)
        if len(batch.slots) > num_rows:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")
        return logits

    monkeypatch.setattr(runner._forward, "run", limited)
    return attempts


def run_together(runner: ModelRunner) -> list[Request]:
    """All in one step from the first on; they are admitted in this order."""
    driver = Driver(runner, seed=1, idle=0.0)
    driver._shuffled = list  # type: ignore[method-assign, assignment]
    return driver.run(*(Request(prompt, 4) for prompt in PROMPTS))


def test_the_newest_sequences_fail_until_the_step_fits_and_the_others_are_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model(tmp_path, "Llama")
    expected = [request.output for request in run_together(make_runner(tmp_path))]
    runner = make_runner(tmp_path)
    attempts = give_room_for(runner, 2, monkeypatch)
    requests = run_together(runner)
    assert attempts[:3] == [4, 3, 2]
    assert [request.error for request in requests] == [None, None, OUT_OF_MEMORY, OUT_OF_MEMORY]
    assert [request.output for request in requests] == [*expected[:2], [], []]


def test_a_sequence_whose_state_does_not_fit_fails_and_its_request_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    save_model(tmp_path, "Llama")
    runner = make_runner(tmp_path)

    def refuse(_: GeneratingSequence) -> str | None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")

    monkeypatch.setattr(runner._generation, "admit", refuse)
    new = GeneratingSequence(7, 0, column([5, 6]), 2, 0, column([0]), GREEDY, 0, request_id="mine")
    rows = Rows(column([7]), column([0]), column([2]), column([0]), column([0, 0]), column([]))
    result = runner.collect(runner.launch(StepPlan(1, 1, column([]), (new,), rows), received_at=0.0))
    assert [(error.wire_id, error.message) for error in result.errors] == [(7, OUT_OF_MEMORY)]
    (line,) = [record for record in caplog.records if "penalties or biases" in record.message]
    assert line.__dict__["request_id"] == "mine"


def test_one_that_does_not_fit_alone_fails_and_the_worker_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model(tmp_path, "Llama")
    runner = make_runner(tmp_path)
    with monkeypatch.context() as patch:
        give_room_for(runner, 0, patch)
        requests = run_together(runner)
        assert {request.error for request in requests} == {OUT_OF_MEMORY}
    assert [request.error for request in run_together(runner)] == [None] * 4


def test_another_error_fails_all_of_the_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_model(tmp_path, "Llama")
    runner = make_runner(tmp_path)

    def broken(*_: object) -> None:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(runner._forward, "run", broken)
    assert {request.error for request in run_together(runner)} == {STEP_FAILED}


def test_warming_up_without_memory_raises_instead_of_failing_nobody_s_sequences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model(tmp_path, "Llama")
    runner = make_runner(tmp_path)
    give_room_for(runner, 15, monkeypatch)
    with pytest.raises(torch.OutOfMemoryError):
        run_largest_step(runner)


class FakeMemory:
    """A device of 80 GiB on which 20 are taken; the step takes 3, the first graph 2, each other one an eighth."""

    def __init__(self, made: list[ModelRunner]) -> None:
        self._made = made
        self.recorded: list[int] = []

    def total(self) -> int:
        return 80 * GIB

    def used(self) -> int:
        graphs = self.recorded if self._made[0].graph_buckets else []
        return 20 * GIB + (2 * GIB if graphs else 0) + (len(graphs[1:]) * GIB // 8)

    def peak(self, run: Callable[[], None]) -> int:
        run()
        return 3 * GIB


def test_the_kv_cache_gets_what_the_rest_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_model(tmp_path, "Llama")
    made: list[ModelRunner] = []

    def make() -> ModelRunner:
        made.append(make_runner(tmp_path, num_blocks=1, max_num_seqs=8))
        return made[0]

    memory = FakeMemory(made)
    needs = measure_needs(make, memory, None)
    assert needs == Needs(20 * GIB, 3 * GIB, 0)
    assert needs.left_of(memory.total(), 0.5) == 17 * GIB
    assert str(needs) == "20.00 GiB of weights, 3.00 GiB for the largest step, 0.00 GiB for graphs"


def test_graphs_are_guessed_from_the_two_largest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_model(tmp_path, "Llama")
    made = [make_runner(tmp_path, num_blocks=1, max_num_seqs=8)]
    memory = FakeMemory(made)
    made[0]._forward.buckets = [1, 2, 4, 8]
    monkeypatch.setattr(made[0], "record_graphs", lambda _, buckets: memory.recorded.extend(buckets))

    class NoRecorder:
        def record(self, run: Callable[[], None]) -> Callable[[], None]:
            raise AssertionError("record_graphs stands for it")

    needs = measure_needs(lambda: made[0], memory, NoRecorder())
    assert memory.recorded == [8, 4]
    assert needs.graphs == 2 * GIB + 3 * GIB // 8


def test_too_little_memory_at_start_is_a_sentence_that_says_what_to_change() -> None:
    with (
        pytest.raises(
            ModelError, match=r"^cuda:0 has too little memory for a step: lower --max-num-batched-tokens or "
        ),
        out_of_memory_explained("a step", torch.device("cuda", 0)),
    ):
        raise torch.OutOfMemoryError("CUDA out of memory.")
