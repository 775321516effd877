"""Selects the forms of a model's tool calls and reasoning, from the operator's flags or the model's chat template."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from services.router.chat.harmony_messages import HarmonyMessages
from services.router.chat.message_form import MessageForm
from services.router.chat.parsers import (
    CHANNEL,
    DEEPSEEK_V3,
    DEEPSEEK_V31,
    FUNCTIONGEMMA,
    GEMMA4,
    GEMMA4_THOUGHT,
    GRANITE,
    GRANITE_THOUGHT,
    HARMONY_CALLS,
    HERMES,
    HUNYUAN_A13B,
    INTERNLM,
    LLAMA3_JSON,
    LLAMA4_JSON,
    MESSAGE,
    MISTRAL,
    PLAIN,
    PYTHONIC,
    QWEN3_CODER,
    SEED_OSS,
    SEED_THINK,
    XLAM,
    ReasoningForm,
    ToolForm,
)
from services.router.chat.tagged_messages import TaggedMessages
from services.router.template import SHOWS_NOTHING, TemplateTraits

# The forms by their names. The names are those of vLLM's parsers, except `plain`, `think` and `granite_3_3`.
TOOL_FORMS = {
    "hermes": HERMES,
    "qwen3_coder": QWEN3_CODER,
    "seed_oss": SEED_OSS,
    "llama3_json": LLAMA3_JSON,
    "llama4_json": LLAMA4_JSON,
    "pythonic": PYTHONIC,
    "llama4_pythonic": PYTHONIC,
    "mistral": MISTRAL,
    "deepseek_v3": DEEPSEEK_V3,
    "deepseek_v31": DEEPSEEK_V31,
    "granite": GRANITE,
    "internlm": INTERNLM,
    "hunyuan_a13b": HUNYUAN_A13B,
    "xlam": XLAM,
    "functiongemma": FUNCTIONGEMMA,
    "gemma4": GEMMA4,
    "openai": HARMONY_CALLS,
    "plain": PLAIN,
}
THINK = ReasoningForm("<think>", "</think>")
THINK_AND_ANSWER = ReasoningForm("<think>", "</think>", answer=("<answer>", "</answer>"))
# Granite 3.3's form.
THINK_AND_RESPONSE = ReasoningForm("<think>", "</think>", answer=("<response>", "</response>"))
REASONING_FORMS = {
    "think": THINK,
    "qwen3": THINK,
    "deepseek_r1": ReasoningForm("<think>", "</think>", starts_inside=True),
    "mistral": ReasoningForm("[THINK]", "[/THINK]"),
    "seed_oss": SEED_THINK,
    "gemma4": GEMMA4_THOUGHT,
    "hunyuan_a13b": THINK_AND_ANSWER,
    "granite": GRANITE_THOUGHT,
    "granite_3_3": THINK_AND_RESPONSE,
}
# Name of gpt-oss' reasoning form. It has no ReasoningForm, because gpt-oss writes calls and reasoning in the same form:
# as messages with channels.
HARMONY_REASONING = "openai_gptoss"
# Texts that occur only in the chat templates of models with one form, and the name of that form.
_MARKERS = {
    "<|tool_call|>": "granite",
    "<|action_start|>": "internlm",
    "<tool_calls>[": "hunyuan_a13b",
    '[{"name": "tool_call_name"': "xlam",
    "<start_function_call>": "functiongemma",
    "<|tool_call>": "gemma4",
    "[func_name1(": "pythonic",
}


@dataclass(frozen=True, slots=True)
class ModelForms:
    messages: MessageForm
    template_takes_tools: bool  # whether the template renders the request's tools
    template_takes_calls: bool  # whether the template renders the calls of earlier turns

    @property
    def tools(self) -> ToolForm | None:
        """The form of tool calls. None: calls are not parsed and stay in the content."""
        return self.messages.tools


@dataclass(frozen=True, slots=True)
class FormChoice:
    """The operator's choice of parsers: names of forms, `auto` or `none`."""

    tool_call_parser: str = "auto"
    reasoning_parser: str = "auto"

    def of(self, template: str, traits: TemplateTraits = SHOWS_NOTHING) -> ModelForms:
        """Returns the forms in which the model writes its messages. `template` is the chat template's source, empty if
        there is none. `traits` describe what the template renders; they matter only for requests with tools or
        calls."""
        return _forms(self.tool_call_parser, self.reasoning_parser, template, traits)


@functools.lru_cache(maxsize=32)
def _forms(tool_call_parser: str, reasoning_parser: str, template: str, traits: TemplateTraits) -> ModelForms:
    name = tool_call_parser
    if name == "auto":
        name = "openai" if reasoning_parser == HARMONY_REASONING else detect_tool_form(template)
    # For the plain form, Quire itself describes the tools, because the template would describe another form of calls.
    is_plain = name == "plain"
    return ModelForms(
        _messages(name, reasoning_parser, template),
        template_takes_tools=not is_plain and traits.shows_tools,
        template_takes_calls=not is_plain and traits.shows_calls,
    )


def _messages(name: str, reasoning_parser: str, template: str) -> MessageForm:
    """Returns the form of messages. `name`: the name of the tool calls' form, or "none" if calls are not parsed.
    Messages have gpt-oss' form, which has channels, in two cases: calls have gpt-oss' form and reasoning has no other
    form, or calls are not parsed and reasoning has gpt-oss' form."""
    is_detected = reasoning_parser == "auto"
    has_channels = detect_tool_form(template) == "openai" if is_detected else reasoning_parser == HARMONY_REASONING
    if has_channels if name == "none" else name == "openai" and reasoning_parser not in REASONING_FORMS:
        return HarmonyMessages(tells_calls=name != "none", tells_reasoning=reasoning_parser != "none")
    reasoning = detect_reasoning_form(template) if is_detected else REASONING_FORMS.get(reasoning_parser)
    return TaggedMessages(reasoning, TOOL_FORMS.get(name))


def detect_tool_form(template: str) -> str:
    """Returns the name of the tool form, detected by marks in the template's source; `plain` if there is no known
    mark."""
    if CHANNEL in template and MESSAGE in template and "analysis" in template:
        return "openai"
    if "<seed:tool_call>" in template:
        return "seed_oss"
    if "<function=" in template and "<parameter=" in template:
        return "qwen3_coder"
    if "<tool_call>" in template:
        # GLM also uses <tool_call>, but puts keys and values in tags of their own.
        return "plain" if "<arg_key>" in template else "hermes"
    if "[TOOL_CALLS]" in template:
        return "mistral"
    if "<｜tool▁sep｜>" in template:
        return "deepseek_v3" if "```json" in template else "deepseek_v31"
    for marker, name in _MARKERS.items():
        if marker in template:
            return name
    if "<|header_start|>" in template and '"parameters"' in template:
        return "llama4_json"
    if "<|python_start|>" in template:
        return "pythonic"
    if "<|python_tag|>" in template or ("<|start_header_id|>" in template and '"parameters"' in template):
        return "llama3_json"
    return "plain"


def detect_reasoning_form(template: str) -> ReasoningForm | None:
    if THINK.end in template and ("<answer>" in template or detect_tool_form(template) == "hunyuan_a13b"):
        return THINK_AND_ANSWER
    if THINK.end in template and "<response>" in template:
        return THINK_AND_RESPONSE
    for form in (THINK, REASONING_FORMS["mistral"], SEED_THINK, GEMMA4_THOUGHT, GRANITE_THOUGHT):
        if form.end in template:
            return form
    return None
