"""Whole answers with a real model of random weights: reasoning comes first, the structure or calls after it, and what
reads the answer tells them apart.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from quire.inference.v1 import sampling_pb2
from services.router.chat.answer_grammar import AnswerForm, Tags
from services.router.chat.call_grammar import calls_grammar, talk_grammar
from services.router.chat.forms import REASONING_FORMS, TOOL_FORMS
from services.router.chat.harmony_messages import HarmonyPlan
from services.router.chat.message import Message
from services.router.chat.parsers.alternatives import calls_or_content, text_or_calls
from services.router.chat.parsers.content import pass_through
from services.router.chat.parsers.form import Marked
from services.router.chat.parsers.harmony import HarmonyReader
from services.router.chat.request import ChatRequest
from services.router.chat.strict_tools import strict_schemas
from services.router.chat.text_parser import TextParser, TextPlan
from services.router.chat.tool_grammar import strict_structure
from services.router.chat.tools import Tool
from services.router.constraints.values import TokenConstraints
from services.router.dispatch.work import FinishReason as TextFinishReason
from services.router.generation.choice_delta import ChoiceDelta
from services.router.generation.options import GenerationOptions
from services.router.grammar.structure import Structure, StructureKind
from services.router.parameters.sampling import SamplingParams, StopConditions
from services.router.text.threads import TextThreads
from services.scheduler.core.sequence import FinishReason
from services.worker.sampling.grammars import Grammars
from tests.integration.engine.test_structured_output import PERSON, Engine, make
from tests.integration.router.small_tokenizers import EOS_TOKEN_ID
from tests.unit.router.test_answer_grammar import tags_of, tokenizer
from tests.unit.router.texts import play, tagged
from tests.unit.worker.tiny_models import save_model

THREADS = TextThreads(1)
VOCAB_SIZE = tokenizer().get_vocab_size()
# Random weights end these values, but never a string.
CHOICES = {
    "type": "object",
    "properties": {
        "unit": {"enum": ["C", "F"]},
        "days": {"type": "integer", "minimum": 0, "maximum": 99},
        "on": {"type": ["boolean", "null"]},
    },
    "required": ["days"],
    "additionalProperties": False,
}
STRUCTURE = Structure(StructureKind.JSON_SCHEMA, json.dumps(PERSON), "")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    save_model(path, "Llama", vocab_size=VOCAB_SIZE, eos_token_id=EOS_TOKEN_ID)
    return path


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return Grammars(tokenizer().to_str().encode(), VOCAB_SIZE, (EOS_TOKEN_ID,))


def message_of(plan: TextPlan, token_ids: list[int]) -> Message:
    """What a client gets of the answer."""
    ids = [token_id for token_id in token_ids if token_id != EOS_TOKEN_ID]
    parser, message = TextParser(plan), Message()
    text = tokenizer().decode(ids, skip_special_tokens=False)
    message.add(parser.parse(ChoiceDelta(0, text, ids, [], TextFinishReason.STOP)))
    return message


def tends_to(*token_ids: int | None, bias: float = 6.0) -> dict[str, Any]:
    """Random weights draw each of their tokens as rarely as any."""
    known = [token_id for token_id in token_ids if token_id is not None]
    assert len(known) == len(token_ids)
    return {"logit_bias": [sampling_pb2.LogitBias(token_id=token_id, bias=bias) for token_id in known]}


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("run_ahead", [1, 3])
@pytest.mark.parametrize("name", ["think", "deepseek_r1", "mistral"])
def test_what_follows_reasoning_is_what_was_asked_for(
    directory: Path, grammars: Grammars, name: str, run_ahead: int
) -> None:
    form, chance = REASONING_FORMS[name], random.Random(run_ahead)
    tags = tags_of(form, are_tokens=True)
    grammar = AnswerForm(tags, form, form.starts_inside).around(STRUCTURE.to_grammar())
    engine = Engine(make(directory, grammars, num_blocks=36, max_num_batched_tokens=24), run_ahead)
    for key in range(12):
        prompt = [chance.randrange(3, VOCAB_SIZE) for _ in range(chance.randint(1, 60))]
        engine.submit(key, prompt, TokenConstraints(grammar), 200, seed=key, **tends_to(*tags.token_ids.values()))
    engine.run()
    assert engine.core.counters.preemptions > 0, "blocks were to run out"
    plan = tagged(form, is_inside=form.starts_inside, end_token_id=tags.token_ids[form.end])
    ended = [key for key in range(12) if engine.ends[key] is FinishReason.STOP]
    assert len(ended) > 3
    messages = [message_of(plan, engine.outputs[key]) for key in ended]
    for message in messages:
        assert jsonschema.Draft202012Validator(PERSON).is_valid(json.loads(message.content)), message.content
    assert any(message.reasoning for message in messages)
    assert {engine.ends[key] for key in range(12)} <= {FinishReason.STOP, FinishReason.LENGTH}


@pytest.mark.usefixtures("one_thread")
def test_in_channels_too_an_answer_is_a_call_or_what_was_asked_for(directory: Path, grammars: Grammars) -> None:
    plan = HarmonyPlan(
        HarmonyReader(structure=lambda feed, builder, _: pass_through(feed, builder)), False, ("get_weather", "get")
    )
    grammar = plan.grammar(Tags({})).around(STRUCTURE.to_grammar())
    engine, chance = Engine(make(directory, grammars, num_blocks=48, max_num_batched_tokens=24), 2), random.Random(2)
    closing = tends_to(*(token_id for text in ('"', "}", "]") for token_id in tokenizer().encode(text).ids), bias=3.0)
    for key in range(24):
        prompt = [chance.randrange(3, VOCAB_SIZE) for _ in range(chance.randint(1, 40))]
        engine.submit(key, prompt, TokenConstraints(grammar), 300, seed=key, **closing)
    engine.run()
    ended = [key for key in range(24) if engine.ends[key] is FinishReason.STOP]
    messages = [message_of(TextPlan(plan), engine.outputs[key]) for key in ended]
    for message in messages:
        if message.tool_calls:
            (call,) = message.tool_calls
            assert call.name in ("get_weather", "get")
            assert isinstance(json.loads(call.arguments), dict)
            assert not message.content
        else:
            assert jsonschema.Draft202012Validator(PERSON).is_valid(json.loads(message.content)), message.content
    assert {bool(message.tool_calls) for message in messages} == {True, False}


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", ["hermes", "plain", "qwen3_coder", "seed_oss", "gemma4"])
def test_an_answer_is_calls_of_the_tools_or_what_was_asked_for(directory: Path, grammars: Grammars, name: str) -> None:
    form, tools = TOOL_FORMS[name], (Tool("get_weather"), Tool("get_time"))
    calls = calls_grammar(tools, form, Tags({}), several=True)
    grammar = AnswerForm(Tags({}), calls=calls).around(STRUCTURE.to_grammar())
    engine, chance = Engine(make(directory, grammars, num_blocks=48, max_num_batched_tokens=24), 2), random.Random(1)
    # Closing brackets and quotes, so that objects end.
    closing = tends_to(*(token_id for text in ('"', "}", "]") for token_id in tokenizer().encode(text).ids), bias=3.0)
    for key in range(24):
        prompt = [chance.randrange(3, VOCAB_SIZE) for _ in range(chance.randint(1, 40))]
        engine.submit(key, prompt, TokenConstraints(grammar), 250, seed=key, **closing)
    engine.run()
    plan = tagged(calls=calls_or_content(form), functions={tool.name: None for tool in tools})
    ended = [key for key in range(24) if engine.ends[key] is FinishReason.STOP]
    messages = [message_of(plan, engine.outputs[key]) for key in ended]
    for message in messages:
        if message.tool_calls:
            assert {call.name for call in message.tool_calls} <= {"get_weather", "get_time"}
            assert all(isinstance(json.loads(call.arguments), dict) for call in message.tool_calls)
            assert not message.content.strip()
        else:
            assert jsonschema.Draft202012Validator(PERSON).is_valid(json.loads(message.content)), message.content
    assert {bool(message.tool_calls) for message in messages} == {True, False}


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(
    ("name", "schema"), [("hermes", PERSON), ("plain", PERSON), ("qwen3_coder", CHOICES), ("gemma4", CHOICES)]
)
async def test_an_answer_is_text_or_calls_that_match_if_tools_are_strict(
    directory: Path, grammars: Grammars, name: str, schema: dict[str, Any]
) -> None:
    form = TOOL_FORMS[name]
    request = ChatRequest(
        None, [], GenerationOptions(SamplingParams(), StopConditions()), (Tool("add", "", schema, strict=True),)
    )
    # Any of the tokenizer's special tokens can stand for the marker.
    marker_id, begin_id = tokenizer().token_to_id("[THINK]"), tokenizer().token_to_id("{")
    assert marker_id is not None
    marker = form.shape.marker if isinstance(form.shape, Marked) else ""
    tags = Tags({marker: marker_id} if marker else {})
    structure = strict_structure(request.tools, request.tool_choice, request.tool_path)
    assert structure is not None
    schemas = await strict_schemas(request, structure, form, THREADS)
    calls = talk_grammar(request.tools, form, tags, several=True, schemas=schemas)
    grammar = AnswerForm(tags, calls=calls).around(Structure(StructureKind.TEXT, "", "").to_grammar())
    engine, chance = Engine(make(directory, grammars, num_blocks=48, max_num_batched_tokens=24), 2), random.Random(1)
    closing = tends_to(*(token_id for text in ('"', "}", "]") for token_id in tokenizer().encode(text).ids), bias=5.0)
    closing["logit_bias"] += tends_to(marker_id, EOS_TOKEN_ID, bias=4.0)["logit_bias"]
    closing["logit_bias"] += tends_to(begin_id, bias=8.0)["logit_bias"] if name == "plain" else []
    for key in range(32):
        prompt = [chance.randrange(3, VOCAB_SIZE) for _ in range(chance.randint(1, 40))]
        engine.submit(key, prompt, TokenConstraints(grammar), 250, seed=key, **closing)
    engine.run()
    read = text_or_calls(form, schemas)
    messages = []
    for key in (key for key in range(32) if engine.ends[key] is FinishReason.STOP):
        text = tokenizer().decode(
            [one for one in engine.outputs[key] if one != EOS_TOKEN_ID], skip_special_tokens=False
        )
        pieces = [text.replace("[THINK]", marker)]
        messages.append(play(tagged(calls=read), pieces, functions={"add": schema}))
    for message in messages:
        for call in message.tool_calls:
            assert call.name == "add"
            assert jsonschema.Draft202012Validator(schema).is_valid(json.loads(call.arguments)), call.arguments
        assert not marker or marker not in message.content
    assert {bool(message.tool_calls) for message in messages} == {True, False}
