"""What a request with tools asks of the model: its grammar, and what its template is told."""

from __future__ import annotations

import json
from typing import Any

import pytest

from services.router.chat.forms import FormChoice
from services.router.chat.plan import ChatPlan, plan_chat
from services.router.chat.request import ChatRequest
from services.router.chat.tools import Tool, ToolChoice, ToolMode
from services.router.generation.options import GenerationOptions
from services.router.grammar.structure import Structure, StructureKind
from services.router.model import ModelInfo, ServedModel
from services.router.parameters.sampling import SamplingParams, StopConditions
from services.router.text.threads import TextThreads
from services.router.text.tokenizer import Tokenizer
from tests.integration.router.small_tokenizers import byte_level, tokenizer_config

USER = {"role": "user", "content": "Hello"}
OBJECT = Structure(StructureKind.JSON_OBJECT, "", "response_format")
QWEN = "{% if tools %}{{ tools | tojson }}{% endif %}<tool_call></think>"


async def plan_of(
    template: str, *, choice: ToolChoice | None = None, structure: Structure | None = None, **kwargs: Any
) -> ChatPlan:
    config = json.dumps(tokenizer_config(template)).encode()
    threads = TextThreads(1)
    tokenizer = Tokenizer(byte_level().to_str().encode(), config, threads)
    info = ModelInfo("m", (), 4096, 512, frozenset({2}), SamplingParams(), "", 0, "", "")
    request = ChatRequest(
        model=None,
        messages=[USER],
        options=GenerationOptions(SamplingParams(), StopConditions(), structure=structure),
        tools=(Tool("f"),),
        tool_choice=choice or ToolChoice(),
        **kwargs,
    )
    plan = await plan_chat(request, ServedModel(info, tokenizer, 0), FormChoice())
    threads.close()
    return plan


@pytest.mark.parametrize("choice", [ToolChoice(ToolMode.REQUIRED), ToolChoice(ToolMode.NAMED, "f")])
async def test_a_call_that_is_asked_for_is_held_to_a_grammar_and_goes_before_others(choice: ToolChoice) -> None:
    plan = await plan_of(QWEN, choice=choice, structure=OBJECT)
    assert plan.structure is not None
    assert plan.structure.kind in (StructureKind.JSON_SCHEMA, StructureKind.COMPOUND_SCHEMA)
    assert plan.template_tools == [Tool("f").to_template()]


async def test_a_free_model_is_held_to_the_request_s_own_structure_only() -> None:
    assert (await plan_of(QWEN)).structure is None
    assert (await plan_of(QWEN)).template_kwargs is None
    assert (await plan_of(QWEN, structure=OBJECT)).structure == OBJECT


async def test_tools_go_into_the_template_or_a_message_or_nowhere() -> None:
    assert (await plan_of(QWEN)).messages == [USER]
    plan = await plan_of("{{ messages[0].content }}")
    assert plan.template_tools is None
    assert [message["role"] for message in plan.messages] == ["system", "user"]
    plan = await plan_of("{{ messages[0].content }}", choice=ToolChoice(ToolMode.NONE))
    assert (plan.template_tools, plan.messages) == (None, [USER])
