"""Plans one chat answer: the template's input, the constraint on the output, and the parser for the output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from services.router.chat.answer_grammar import Tags
from services.router.chat.forms import FormChoice, ModelForms
from services.router.chat.message_form import Asked, MessagePlan
from services.router.chat.parsers import PLAIN, Schemas, ToolForm, openai_id
from services.router.chat.request import ChatRequest
from services.router.chat.strict_tools import strict_schemas
from services.router.chat.text_parser import TextPlan
from services.router.chat.thinking import may_think
from services.router.chat.tool_grammar import strict_structure, structure_of
from services.router.chat.tool_prompt import calls_as_text, describe_tools, with_instructions
from services.router.chat.tools import ToolMode, check_tools
from services.router.constraints import AroundStructure
from services.router.errors import ApiError, ErrorKind
from services.router.grammar import Structure, StructureKind
from services.router.model import ServedModel
from services.router.prompt import PromptTemplate, check_call_arguments, templates_for
from services.router.template import SHOWS_NOTHING, TemplateTraits

# Number of tokens at the prompt's end that show whether the prompt leaves reasoning or, for gpt-oss, a message open.
_NUM_TAIL_TOKENS = 16
# Size of work for which `threads.run` always uses a thread, because only smaller work runs on the event loop.
_MANY_CHARS = 1 << 20


@dataclass(frozen=True, slots=True)
class MessageWriting:
    """How messages are written for a chat template that may not support tools."""

    # Form in which calls become text. None: the template takes calls.
    calls: ToolForm | None
    # Text of the system message that describes the tools; empty if the template gets the tools, or there are none.
    description: str
    # Whether the template renders system messages.
    shows_system: bool

    def write(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if self.calls is not None and any(_has_calls(message) for message in messages):
            messages = calls_as_text(messages, self.calls)
        if self.description:
            messages = with_instructions(messages, self.description, shows_system=self.shows_system)
        return messages


@dataclass(frozen=True, slots=True)
class ChatPlan:
    """A conversation as the chat template gets it, with the forms in which the model writes its answers."""

    request: ChatRequest
    writing: MessageWriting
    # None: the model has no chat template.
    template: PromptTemplate | None
    forms: ModelForms
    # Messages in the form that the template takes.
    messages: list[dict[str, Any]]
    template_tools: list[dict[str, Any]] | None
    template_kwargs: Mapping[str, Any] | None
    # None: no grammar constrains the answers.
    structure: Structure | None
    # Schemas of the strict tools that the model may decide to call.
    schemas: Schemas = field(default_factory=dict)

    def with_messages(self, messages: list[dict[str, Any]]) -> ChatPlan:
        """Returns the plan for other messages of the same request, such as fewer of them."""
        request = replace(self.request, messages=messages)
        return replace(self, request=request, messages=self.writing.write(messages))

    async def text_plan(self, model: ServedModel, prompt: list[int], skip_special_tokens: bool) -> TextPlan:
        """Returns the plan for parsing the answers. `prompt`: token ids of the rendered prompt."""
        form, vocabulary = self.forms.messages, model.tokenizer.vocabulary
        prompt_end = await self._prompt_end(model, prompt) if form.heeds_prompt else ""
        plan = form.plan(self._asked, prompt_end, vocabulary)
        special = vocabulary.special_ids(plan.tags) if skip_special_tokens else ()
        return TextPlan(
            plan,
            functions={tool.name: tool.parameters for tool in self.request.tools},
            max_calls=None if self.request.tool_choice.parallel else 1,
            hidden_tokens=tuple(tag for tag in plan.tags if vocabulary.token_id(tag) in special),
            new_id=openai_id if form.tools is None else form.tools.new_id,
        )

    def around_structure(self, plan: MessagePlan, model: ServedModel) -> AroundStructure | None:
        """Returns an object that extends the structure's grammar to the grammar of the whole answer, which can have
        reasoning before the structure, or calls in place of it. Returns None if no grammar constrains the answers."""
        if self.structure is None:
            return None
        ids = {tag: model.tokenizer.vocabulary.token_id(tag) for tag in plan.tags}
        return plan.grammar(Tags({tag: token_id for tag, token_id in ids.items() if token_id is not None}))

    @property
    def _asked(self) -> Asked:
        request = self.request
        return Asked(
            request.tools,
            request.tool_choice,
            has_structure=self.structure is not None and self.structure.kind is not StructureKind.TEXT,
            may_think=may_think(self.template_kwargs),
            is_continued=request.continue_final_message,
            schemas=self.schemas,
        )

    async def _prompt_end(self, model: ServedModel, prompt: list[int]) -> str:
        if self.request.continue_final_message:
            return str(self.messages[-1]["content"])
        (text,) = await model.tokenizer.decode([prompt[-_NUM_TAIL_TOKENS:]])
        return text


async def plan_chat(request: ChatRequest, model: ServedModel, choice: FormChoice) -> ChatPlan:
    """Plans the answer to `request`. Raises ApiError if the request's tools are invalid."""
    if request.tools or request.tool_choice.mode in (ToolMode.REQUIRED, ToolMode.NAMED):
        structure, strict = await model.tokenizer.threads.run(_MANY_CHARS, lambda: _checked(request))
    else:
        structure, strict = None, None
    # With tool choice `none`, the prompt does not mention the tools.
    tools = () if request.tool_choice.mode is ToolMode.NONE else request.tools
    template, traits, forms = await _choose_template(request, model, choice, has_tools=bool(tools))
    is_forced, structure = structure is not None, structure or request.options.structure
    if structure is not None and request.tools and request.tool_choice.mode is ToolMode.AUTO:
        _check_shape(forms, structure)
    schemas: Schemas = {}
    # The beginning of a continued message is not part of the answer, and may leave a call open.
    if strict is not None and forms.messages.calls_follow_schemas and not request.continue_final_message:
        schemas = await strict_schemas(request, strict, forms.messages.tools, model.tokenizer.threads)
        structure = structure or Structure(StructureKind.TEXT, "", request.tool_path.all)
    template_tools, description = None, ""
    if tools and (forms.template_takes_tools or traits.needs_tools):
        template_tools = [tool.to_template() for tool in tools]
    if tools and template is not None and not forms.template_takes_tools:
        # A forced call needs no example in the prompt, because the grammar enforces its form.
        form = None if is_forced else forms.tools
        description = describe_tools(tools, form, parallel=request.tool_choice.parallel)
    calls = None if forms.template_takes_calls else forms.tools or PLAIN
    writing = MessageWriting(calls, description, traits.shows_system)
    size = 0 if calls is None else await check_call_arguments(model, request.messages, request.messages_param)
    messages = await model.tokenizer.threads.run(size, lambda: writing.write(request.messages))
    return ChatPlan(
        request, writing, template, forms, messages, template_tools, request.template_kwargs, structure, schemas
    )


async def _choose_template(
    request: ChatRequest, model: ServedModel, choice: FormChoice, *, has_tools: bool
) -> tuple[PromptTemplate | None, TemplateTraits, ModelForms]:
    """Chooses the template that renders the prompt. Returns the template, the template's traits and the model's forms.
    Raises ApiError."""
    found: tuple[PromptTemplate | None, TemplateTraits, ModelForms] = None, SHOWS_NOTHING, choice.of("")
    # Finds a template's traits only for requests with tools or calls, because others do not need them, and because it
    # takes a while to find the traits of a template that the client sent.
    is_probed = has_tools or any(_has_calls(message) for message in request.messages)
    for template in templates_for(model.tokenizer, request.chat_template, has_tools=has_tools):
        traits = await template.traits() if is_probed else SHOWS_NOTHING
        forms = choice.of(template.source, traits)
        found = template, traits, forms
        if forms.template_takes_tools:
            break
    return found


def _checked(request: ChatRequest) -> tuple[Structure | None, Structure | None]:
    """Checks the tools. Returns the structure of the calls that the request requires, and that of strict tools' calls
    that the model may decide to make."""
    tools, choice, path = request.tools, request.tool_choice, request.tool_path
    check_tools(tools, choice, path)
    return structure_of(tools, choice, path), strict_structure(tools, choice, path)


def _check_shape(forms: ModelForms, structure: Structure) -> None:
    """Raises ApiError if the model's form of tool calls cannot be combined with a structure."""
    if not forms.messages.calls_fit_structures:
        message = (
            f"Invalid '{structure.param}': this model's form of tool calls cannot be combined with a structure. "
            "Use 'tool_choice' 'none' or 'required', or ask for the structure without 'tools'."
        )
        raise ApiError(ErrorKind.UNSUPPORTED, message, structure.param)


def _has_calls(message: Mapping[str, Any]) -> bool:
    return message["role"] == "tool" or bool(message.get("tool_calls"))
