"""The scheduler's core, the wire's types and a real model with random weights: whatever happens in between, outputs are
what their requests say they must be.
"""

from __future__ import annotations

import json
import random
import re
import time
from array import array
from collections import deque
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch

from quire.inference.v1 import constraints_pb2, sampling_pb2
from quire.worker.v1 import worker_pb2
from services.router.columns import ids_to_bytes
from services.router.constraints.values import BadWords, TokenConstraints
from services.router.dispatch.converters import constraints_to_proto
from services.router.grammar.structure import Structure, StructureKind
from services.scheduler.converters import plan_to_proto, result_from_proto
from services.scheduler.core.config import CoreConfig
from services.scheduler.core.request import Generate, Preparation
from services.scheduler.core.scheduler import Scheduler
from services.scheduler.core.sequence import FinishReason
from services.scheduler.worker_request import WorkerRequest
from services.worker.sampling.grammars import Grammars
from services.worker.service.converters import plan_from_proto, result_to_proto
from services.worker.step.generation import DecoderGeneration
from services.worker.step.model_runner import LaunchedStep, ModelRunner
from tests.fakes.waiting import HANG_S
from tests.integration.router.small_tokenizers import EOS_TOKEN_ID, byte_level
from tests.unit.worker.tiny_models import make_runner, save_model

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b", "ü"]}, "maxItems": 3},
        "home": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/place"}]},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
    "$defs": {"place": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]}},
}
STRUCTURES = [
    Structure(StructureKind.JSON_SCHEMA, json.dumps(PERSON), ""),
    Structure(StructureKind.REGEX, r"[a-f]{3,9}-[0-9]{2}", ""),
    Structure(StructureKind.CHOICE, json.dumps(["yes", "yes, of course", "no", "日本"]), ""),
    Structure(StructureKind.GRAMMAR, 'start: "(" start ")" | /[xyz]{1,4}/', ""),
]
VOCAB_SIZE = byte_level().get_vocab_size() + 3


def is_allowed(structure: Structure, text: str) -> bool:
    match structure.kind:
        case StructureKind.JSON_SCHEMA:
            return jsonschema.Draft202012Validator(PERSON).is_valid(json.loads(text))
        case StructureKind.REGEX:
            return re.fullmatch(structure.source, text) is not None
        case StructureKind.CHOICE:
            return text in json.loads(structure.source)
        case _:
            depth = text.count("(")
            return re.fullmatch(rf"\({{{depth}}}[xyz]{{1,4}}\){{{depth}}}", text) is not None


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    save_model(path, "Llama", vocab_size=VOCAB_SIZE, eos_token_id=EOS_TOKEN_ID)
    return path


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return Grammars(byte_level().to_str().encode(), VOCAB_SIZE, (EOS_TOKEN_ID,))


class Engine:
    """Core and runner with run-ahead, in one thread; grammars are prepared some steps after they were asked for."""

    def __init__(self, runner: ModelRunner, run_ahead: int = 2) -> None:
        limits = runner.limits
        self.runner, self.run_ahead = runner, run_ahead
        self.core: Scheduler[WorkerRequest] = Scheduler(
            CoreConfig(
                num_blocks=limits.num_blocks,
                block_size=limits.block_size,
                max_num_seqs=limits.max_num_seqs,
                max_num_batched_tokens=limits.max_num_batched_tokens,
                max_model_len=min(limits.max_model_len, limits.num_blocks * limits.block_size),
            )
        )
        self.outputs: dict[int, list[int]] = {}
        self.ends: dict[int, FinishReason | str] = {}

    def submit(
        self,
        key: int,
        prompt: list[int],
        constraints: TokenConstraints | None,
        max_tokens: int = 300,
        output: tuple[int, ...] = (),
        **sampling: Any,
    ) -> None:
        self.outputs[key] = list(output)
        message = None if constraints is None else constraints_to_proto(constraints)
        if message is not None:
            message = constraints_pb2.TokenConstraints.FromString(message.SerializeToString())
        grammar = "" if constraints is None else constraints.grammar
        self.core.submit(
            WorkerRequest(
                key,
                array("I", prompt),
                Generate(max_tokens, frozenset([EOS_TOKEN_ID])),
                array("I", output),
                choice_index=key,
                sampling=sampling_pb2.SamplingParams(**({"temperature": 1.0, "seed": 7} | sampling)),
                constraints=message,
                needs=Preparation(grammar.encode(), grammar) if grammar else None,
            )
        )

    def prepare(self, preparation: Preparation) -> None:
        """As the worker's service does. The runner compiles shared grammars by itself."""
        output = preparation.output_token_ids
        problem = None
        if output is not None:
            assert isinstance(self.runner._generation, DecoderGeneration)
            grammars = self.runner._generation._grammars
            assert grammars is not None
            ids = np.array(output, np.uint32)
            problem = grammars.prepare_own(preparation.key, preparation.source, ids).exception(HANG_S)
        for end in self.core.prepared(preparation.key, "" if problem is None else str(problem)):
            assert isinstance(end.sequence.request.key, int)
            assert end.failure is not None
            self.ends[end.sequence.request.key] = end.failure.message

    def run(self, num_steps: int | None = None) -> None:
        in_flight: deque[LaunchedStep] = deque()
        asked: list[Preparation] = []
        while num_steps is None or num_steps > 0:
            while len(in_flight) < self.run_ahead and (plan := self.core.schedule()) is not None:
                wire = worker_pb2.StepPlan.FromString(plan_to_proto(plan, epoch=1).SerializeToString())
                in_flight.append(self.runner.launch(plan_from_proto(wire), received_at=time.monotonic()))
            self.core.check_integrity()
            if asked and (not in_flight or len(self.outputs) % 2):
                self.prepare(asked.pop(0))
            asked += self.core.preparations.take_wanted()
            if not in_flight:
                if asked or self.core.num_waiting:
                    continue
                return
            if num_steps is not None:
                num_steps -= 1
            outcome = self.core.apply(result_from_proto(result_to_proto(self.runner.collect(in_flight.popleft()))))
            for sequence, _, token_id, _ in outcome.tokens:
                assert isinstance(sequence.request.key, int)
                self.outputs[sequence.request.key].append(token_id)
            for end in outcome.finished:
                assert isinstance(end.sequence.request.key, int)
                self.ends[end.sequence.request.key] = end.failure.message if end.failure else end.reason

    def text(self, key: int) -> str:
        ids = [token_id for token_id in self.outputs[key] if token_id != EOS_TOKEN_ID]
        return byte_level().decode(ids, skip_special_tokens=False)


def make(directory: Path, grammars: Grammars, **limits: int) -> ModelRunner:
    given: dict[str, Any] = {"block_size": 8, "num_blocks": 96, "max_num_seqs": 8} | limits
    return make_runner(directory, grammars=grammars, **given)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("run_ahead", [1, 2, 3])
def test_outputs_are_what_they_must_be_with_chunks_crowds_and_preemption(
    directory: Path, grammars: Grammars, run_ahead: int
) -> None:
    runner = make(directory, grammars, num_blocks=30, max_num_batched_tokens=24)
    engine, chance = Engine(runner, run_ahead), random.Random(run_ahead)
    structures: dict[int, Structure] = {}
    for key in range(24):
        prompt = [chance.randrange(3, VOCAB_SIZE) for _ in range(chance.randint(1, 60))]
        if key % 4 == 3:
            engine.submit(key, prompt, None, chance.randint(1, 40))
            continue
        structures[key] = chance.choice(STRUCTURES)
        constraints = TokenConstraints(structures[key].to_grammar())
        engine.submit(key, prompt, constraints, max_tokens=170, temperature=chance.choice([0.0, 0.7, 1.0]), seed=key)
    engine.run()
    assert engine.core.counters.preemptions > 0, "blocks were to run out"
    ended = [key for key in structures if engine.ends[key] is FinishReason.STOP]
    assert len(ended) > 8
    for key in ended:
        assert is_allowed(structures[key], engine.text(key)), engine.text(key)
    assert {engine.ends[key] for key in structures} <= {FinishReason.STOP, FinishReason.LENGTH}


@pytest.mark.usefixtures("one_thread")
def test_an_output_is_the_same_alone_in_a_crowd_and_resubmitted_from_its_middle(
    directory: Path, grammars: Grammars
) -> None:
    runner = make(directory, grammars)
    if not runner.ops.batch_invariant:
        pytest.skip("the compiled kernels are not built")
    constraints = TokenConstraints(STRUCTURES[0].to_grammar(), bad_words=BadWords.of([[70, 71]]))
    prompt = [random.Random(2).randrange(3, VOCAB_SIZE) for _ in range(20)]
    crowd = Engine(runner)
    for key in range(6):
        crowd.submit(key, prompt, constraints, 60)
    crowd.run()
    for key in range(6):
        for length in (0, len(crowd.outputs[key]) // 2, len(crowd.outputs[key]) - 1):
            runner.reset()
            alone = Engine(runner, run_ahead=1)
            alone.submit(key, prompt, constraints, 60, output=tuple(crowd.outputs[key][:length]))
            alone.run()
            assert alone.outputs[key] == crowd.outputs[key], length
    assert len({tuple(output) for output in crowd.outputs.values()}) > 1


@pytest.mark.usefixtures("one_thread")
def test_no_end_before_min_tokens_no_bad_words_and_allowed_tokens_alone(directory: Path, grammars: Grammars) -> None:
    engine = Engine(make(directory, grammars))
    ends = (EOS_TOKEN_ID,)
    likely: dict[str, Any] = {"logit_bias": [sampling_pb2.LogitBias(token_id=EOS_TOKEN_ID, bias=100)]}
    allowed = (EOS_TOKEN_ID, 40, 41)
    engine.submit(0, [5], TokenConstraints(min_tokens=9, end_token_ids=ids_to_bytes(ends)), **likely)
    engine.submit(1, [5], TokenConstraints(allowed_token_ids=ids_to_bytes(allowed)), 50)
    both = ids_to_bytes([40, 41])
    words = BadWords.of([[40, 41], [41, 41, 41]])
    engine.submit(2, [5], TokenConstraints(allowed_token_ids=both, bad_words=words), 50)
    engine.submit(3, [5], TokenConstraints(allowed_token_ids=both, bad_words=BadWords.of([[40]])), 10)
    engine.submit(
        4, [5], TokenConstraints(STRUCTURES[2].to_grammar(), min_tokens=200, end_token_ids=ids_to_bytes(ends))
    )
    engine.submit(5, [5], None, **likely)
    engine.run()
    assert len(engine.outputs[0]) == 10
    assert engine.outputs[0][-1] == EOS_TOKEN_ID
    assert set(engine.outputs[1]) <= set(allowed)
    runs = bytes(engine.outputs[2])
    assert bytes([40, 41]) not in runs
    assert bytes([41, 41, 41]) not in runs
    assert engine.outputs[3] == [41] * 10
    # A grammar that is through ends the output, however short it is.
    assert is_allowed(STRUCTURES[2], engine.text(4))
    assert engine.ends[4] is FinishReason.STOP
    assert engine.outputs[5] == [EOS_TOKEN_ID]


@pytest.mark.usefixtures("one_thread")
def test_a_sequence_whose_constraints_leave_nothing_fails_alone(directory: Path, grammars: Grammars) -> None:
    engine = Engine(make(directory, grammars))
    engine.submit(0, [5, 6], TokenConstraints(STRUCTURES[1].to_grammar(), allowed_token_ids=ids_to_bytes([300])))
    engine.submit(1, [5, 6], TokenConstraints(STRUCTURES[1].to_grammar()))
    engine.submit(2, [5, 6], TokenConstraints(STRUCTURES[1].to_grammar()), output=(300,))
    engine.submit(3, [5, 6], TokenConstraints("not a grammar"))
    engine.submit(4, [5, 6], TokenConstraints(allowed_token_ids=ids_to_bytes([VOCAB_SIZE])))
    engine.submit(5, [5, 6], None, 20)
    engine.run()
    assert "contradict each other" in str(engine.ends[0])
    assert engine.ends[1] is FinishReason.STOP
    assert is_allowed(STRUCTURES[1], engine.text(1))
    assert "doesn't satisfy the grammar" in str(engine.ends[2])
    assert "grammar of this request failed" in str(engine.ends[3])
    assert f"the model has {VOCAB_SIZE} tokens" in str(engine.ends[4])
    assert len(engine.outputs[5]) == 20 or engine.ends[5] is FinishReason.STOP


class LateDownload:
    """As from a device: tokens are on the host only once somebody has waited for them."""

    log: list[str]

    def __init__(self, tensors: list[torch.Tensor], device: torch.device) -> None:
        self._host = [tensor.clone() for tensor in tensors]
        self.event = None  # The host's clock times the steps.

    def arrived(self) -> bool:
        return False

    def wait(self) -> list[torch.Tensor]:
        self.log.append("wait")
        return self._host


def record(monkeypatch: pytest.MonkeyPatch, log: list[str], owner: Any, name: str, word: str) -> None:
    """Calls of the owner's method go to the log."""
    method = getattr(owner, name)

    def recorded(*args: Any) -> Any:
        log.append(word)
        return method(*args)

    monkeypatch.setattr(owner, name, recorded)


@pytest.mark.usefixtures("one_thread")
def test_the_tokens_before_are_waited_for_after_the_forward_pass_was_launched(
    directory: Path, grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = make(directory, grammars)
    log: list[str] = []
    monkeypatch.setattr(LateDownload, "log", log, raising=False)
    monkeypatch.setattr("services.worker.step.model_runner.Download", LateDownload)
    record(monkeypatch, log, runner._forward, "run", "forward")
    generation = runner._generation
    assert isinstance(generation, DecoderGeneration)
    record(monkeypatch, log, generation._sampler, "sample", "sample")
    record(monkeypatch, log, generation._constraints, "mask", "mask")
    engine = Engine(runner, run_ahead=2)
    engine.submit(0, [5, 6], TokenConstraints(STRUCTURES[1].to_grammar()))
    engine.run()
    assert is_allowed(STRUCTURES[1], engine.text(0))
    steps = "".join(word[0] for word in log)
    # Launched, and before its tokens are collected: the next one's forward pass, then the wait, the mask, the sampler.
    assert steps.startswith("fms" + "fwms" + "wfwms")
    log.clear()
    runner.reset()
    free = Engine(runner, run_ahead=2)
    free.submit(0, [5, 6], None, 3)
    free.run()
    assert "".join(word[0] for word in log).startswith("fsfsw"), "nobody waits where nothing is constrained"
