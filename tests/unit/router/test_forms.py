"""Which forms a model writes in is told from its template, or by the operator."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from services.router.chat.forms import (
    HARMONY_REASONING,
    REASONING_FORMS,
    THINK,
    TOOL_FORMS,
    FormChoice,
    detect_reasoning_form,
    detect_tool_form,
)
from services.router.chat.harmony_messages import HarmonyMessages
from services.router.chat.tagged_messages import TaggedMessages
from services.router.config import REASONING_PARSERS, TOOL_CALL_PARSERS, RouterConfig
from services.router.template.chat_template import ChatTemplate
from services.router.template.probe import TemplateTraits
from shared.config import ConfigError

GOLDENS = Path(__file__).parents[3].parent / "shared/templates/chat_template_goldens.json"
SHOWS_ALL = TemplateTraits(shows_tools=True, shows_calls=True, shows_system=True)
PUBLISHED = {
    "Qwen/Qwen3-0.6B": ("hermes", True, True),
    "Qwen/Qwen3.5-4B": ("qwen3_coder", True, True),
    "meta-llama/Llama-3.1-8B-Instruct": ("llama3_json", True, False),
    "mistralai/Mistral-7B-Instruct-v0.3 (JSON Schema)": ("mistral", True, False),
    "deepseek-ai/DeepSeek-R1": ("deepseek_v3", False, True),
    "zai-org/GLM-5.1": ("plain", False, True),
    "CohereForAI/c4ai-command-r-v01": ("plain", False, False),
    "Qwen/Qwen1.5-72B-Chat": ("plain", False, False),
}


@pytest.mark.skipif(not GOLDENS.exists(), reason="the published templates are not here")
@pytest.mark.parametrize("name", PUBLISHED)
def test_published_templates_show_their_form(name: str) -> None:
    template = json.loads(GOLDENS.read_text())["TEST_CUSTOM_TEMPLATES"][name]["chat_template"]
    form, takes_tools, reasons = PUBLISHED[name]
    found = FormChoice().of(template, ChatTemplate(template, {}).traits)
    assert found.messages == TaggedMessages(THINK if reasons else None, TOOL_FORMS[form])
    assert found.template_takes_tools is takes_tools


@pytest.mark.parametrize(
    ("template", "form"),
    [
        ("{{ tools }}<tool_call>", "hermes"),
        ("{{ tools }}<tool_call><arg_key>", "plain"),
        ("<tool_call>\n<function=x>\n<parameter=y>", "qwen3_coder"),
        ("<seed:tool_call>\n<function=x>\n<parameter=y>", "seed_oss"),
        ("[TOOL_CALLS]", "mistral"),
        ("<｜tool▁sep｜>", "deepseek_v31"),
        ("<｜tool▁sep｜>```json", "deepseek_v3"),
        ("[func_name1(params_name1=params_value1)]", "pythonic"),
        ('<|start_header_id|> {"name": x, "parameters": y}', "llama3_json"),
        ('<|header_start|> <|python_start|> {"name": x, "parameters": y}', "llama4_json"),
        ('<|header_start|> {"name": x, "parameters": y}', "llama4_json"),
        ('<|header_start|> "parameters" [func_name1(params_name1=params_value1)]', "pythonic"),
        ("<|header_start|> <|python_start|>", "pythonic"),
        ("<|start_of_role|> <|tool_call|>", "granite"),
        ("<|action_start|><|plugin|>", "internlm"),
        ('<tool_calls>[{"name": "func_name1"', "hunyuan_a13b"),
        ('<|start_header_id|> [{"name": "tool_call_name", "arguments": {}}]', "xlam"),
        ("<start_function_call>call:", "functiongemma"),
        ("<|tool_call>call:", "gemma4"),
        ("<|start|>assistant<|channel|>analysis<|message|> <tool_call>", "openai"),
        ("{{ messages }}", "plain"),
        ("", "plain"),
    ],
)
def test_a_template_s_own_words_tell_the_form(template: str, form: str) -> None:
    assert detect_tool_form(template) == form


def test_a_template_s_closing_tag_tells_its_reasoning() -> None:
    for name in ("think", "mistral", "seed_oss", "gemma4", "granite"):
        form = REASONING_FORMS[name]
        assert detect_reasoning_form(f"{{{{ x.split('{form.end}') }}}}") is form
    for rest in ("<answer>", '<tool_calls>[{"name"'):
        assert detect_reasoning_form(f"</think>{rest}") is REASONING_FORMS["hunyuan_a13b"]
    assert detect_reasoning_form("<think></think> <response></response>") is REASONING_FORMS["granite_3_3"]
    assert detect_reasoning_form("{{ messages }}") is None


def test_a_template_takes_what_it_shows_in_a_form_that_is_known() -> None:
    forms = FormChoice().of("<tool_call>", SHOWS_ALL)
    assert forms.template_takes_tools
    assert forms.template_takes_calls
    # A form of the template's own would be no example of the plain one.
    forms = FormChoice().of("{{ tools }}{{ tool_calls }}", SHOWS_ALL)
    assert not forms.template_takes_tools
    assert not forms.template_takes_calls


def test_the_operator_s_word_goes_before_the_template_s() -> None:
    forms = FormChoice("mistral", "deepseek_r1").of("<tool_call></think>{{ tools }}")
    assert forms.messages == TaggedMessages(REASONING_FORMS["deepseek_r1"], TOOL_FORMS["mistral"])
    forms = FormChoice("none", "none").of("<tool_call></think>{{ tools }}", SHOWS_ALL)
    assert forms.messages == TaggedMessages(None, None)
    assert forms.template_takes_tools


CHANNELS = "<|start|>assistant<|channel|>analysis<|message|>"


@pytest.mark.parametrize(
    ("template", "tools", "reasoning", "messages"),
    [
        (CHANNELS, "auto", "auto", HarmonyMessages()),
        (CHANNELS, "none", "auto", HarmonyMessages(tells_calls=False)),
        (CHANNELS, "auto", "none", HarmonyMessages(tells_reasoning=False)),
        (CHANNELS, "none", "none", TaggedMessages()),
        (CHANNELS, "hermes", "auto", TaggedMessages(None, TOOL_FORMS["hermes"])),
        ("", "openai", "openai_gptoss", HarmonyMessages()),
        ("</think>", "openai", "auto", HarmonyMessages()),
        ("<tool_call>", "auto", "openai_gptoss", HarmonyMessages()),
        ("", "openai", "none", HarmonyMessages(tells_reasoning=False)),
        ("", "none", "openai_gptoss", HarmonyMessages(tells_calls=False)),
    ],
)
def test_one_name_is_enough_for_channels(template: str, tools: str, reasoning: str, messages: HarmonyMessages) -> None:
    forms = FormChoice(tools, reasoning).of(template, SHOWS_ALL)
    assert forms.messages == messages
    assert forms.template_takes_tools


@pytest.mark.parametrize(("tools", "reasoning"), [("openai", "think"), ("hermes", "openai_gptoss")])
def test_channels_go_with_no_other_form(tools: str, reasoning: str) -> None:
    with pytest.raises(ConfigError, match="only with each other, with auto or with none"):
        RouterConfig(tool_call_parser=tools, reasoning_parser=reasoning)


def test_the_flags_name_every_form() -> None:
    assert list(TOOL_CALL_PARSERS) == ["auto", "none", *TOOL_FORMS]
    assert list(REASONING_PARSERS) == ["auto", "none", *REASONING_FORMS, HARMONY_REASONING]
