"""What one answer in a conversation takes: what its template is given, what may be written, and how to read that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from services.router.chat.answer_grammar import AnswerForm, Tags
from services.router.chat.call_grammar import calls_grammar
from services.router.chat.forms import FormChoice, ModelForms
from services.router.chat.parsers import forced
from services.router.chat.parsers.alternatives import calls_or_content
from services.router.chat.parsers.form import ToolForm, openai_id
from services.router.chat.parsers.plain import PLAIN
from services.router.chat.request import ChatRequest
from services.router.chat.text_parser import TextPlan
from services.router.chat.thinking import may_think
from services.router.chat.tool_grammar import structure_of
from services.router.chat.tool_prompt import calls_as_text, describe_tools, with_instructions
from services.router.chat.tools import ToolMode, check_tools
from services.router.errors import ApiError, ErrorKind
from services.router.model import ServedModel
from services.router.request_template import RequestTemplate, templates_for
from services.router.structure import Structure
from services.router.template_probe import SHOWS_NOTHING, TemplateTraits

# A prompt's last tokens, in which a template opens or closes reasoning.
_NUM_TAIL_TOKENS = 16
# More than any text that is worked on beside other requests.
_MANY_CHARS = 1 << 20


@dataclass(frozen=True, slots=True)
class Turn:
    request: ChatRequest
    # None: the model has none.
    template: RequestTemplate | None
    forms: ModelForms
    # As the template is given them.
    messages: list[dict[str, Any]]
    template_tools: list[dict[str, Any]] | None
    template_kwargs: Mapping[str, Any] | None
    structure: Structure | None

    async def text_plan(self, model: ServedModel, prompt: list[int], skip_special_tokens: bool) -> TextPlan:
        """`prompt`: the rendered one."""
        choice, tools = self.request.tool_choice, self.request.tools
        reasoning = self.forms.reasoning
        form = self.free_form
        calls = None if form is None else form.read if self.structure is None else calls_or_content(form)
        if choice.mode is ToolMode.REQUIRED:
            calls = forced.required
        elif choice.mode is ToolMode.NAMED:
            calls = forced.named(choice.name)
        is_inside, end_token_id = False, None
        tokens = () if form is None else form.tokens
        vocabulary = model.tokenizer.vocabulary
        if reasoning is not None:
            is_open = reasoning.is_open(await self._tail(model, prompt))
            is_free_to = is_open is None and may_think(self.template_kwargs) and not self.is_continued
            if self.structure is not None and not (is_open or is_free_to):
                # A structure is held to from the first token on.
                reasoning = None
        if reasoning is not None:
            is_inside = reasoning.starts_inside if is_open is None else is_open
            end_token_id = vocabulary.token_id(reasoning.end)
            tokens = (*tokens, *reasoning.tokens)
        special = vocabulary.special_ids(tokens) if skip_special_tokens else ()
        return TextPlan(
            reasoning=reasoning,
            calls=calls,
            is_inside=is_inside,
            end_token_id=end_token_id,
            token_text=vocabulary.shown_text,
            functions={tool.name: tool.parameters for tool in tools},
            max_calls=None if choice.parallel else 1,
            tags=tokens,
            hidden_tokens=tuple(token for token in tokens if vocabulary.token_id(token) in special),
            new_id=openai_id if self.forms.tools is None else self.forms.tools.new_id,
        )

    def answer_form(self, plan: TextPlan, model: ServedModel) -> AnswerForm:
        """What the texts that `plan` reads may be beside the structure."""
        ids = {tag: model.tokenizer.vocabulary.token_id(tag) for tag in plan.tags}
        tags = Tags({tag: token_id for tag, token_id in ids.items() if token_id is not None})
        calls = None
        if self.structure is not None and self.free_form is not None:
            several = self.request.tool_choice.parallel
            calls = calls_grammar(self.request.tools, self.free_form, tags, several=several)
        return AnswerForm(tags, plan.reasoning, plan.is_inside, calls)

    @property
    def free_form(self) -> ToolForm | None:
        """The form in which the model may call as it likes; None where it may not."""
        may_call = self.request.tools and self.request.tool_choice.mode is ToolMode.AUTO
        return self.forms.tools if may_call else None

    @property
    def is_continued(self) -> bool:
        """Whether the answer goes on with the last message."""
        return self.request.continue_final_message

    async def _tail(self, model: ServedModel, prompt: list[int]) -> str:
        if not self.is_continued:
            (text,) = await model.tokenizer.decode([prompt[-_NUM_TAIL_TOKENS:]])
            return text
        assert self.forms.reasoning is not None
        content = str(self.messages[-1]["content"])
        last = max(self.forms.reasoning.tokens, key=content.rfind)
        # A message that is continued is as its last tag leaves it.
        return last if last in content else ""


async def plan_turn(request: ChatRequest, model: ServedModel, choice: FormChoice) -> Turn:
    """Raises ApiError where the request's tools are not well-formed."""
    if request.tools or request.tool_choice.mode in (ToolMode.REQUIRED, ToolMode.NAMED):
        structure = await model.tokenizer.threads.run(_MANY_CHARS, lambda: _checked(request))
    else:
        structure = None
    # With `none`, the model is not told of tools that it must not call.
    tools = () if request.tool_choice.mode is ToolMode.NONE else request.tools
    template, traits, forms = await _choose_template(request, model, choice, has_tools=bool(tools))
    is_forced, structure = structure is not None, structure or request.options.structure
    if structure is not None and request.tools and request.tool_choice.mode is ToolMode.AUTO:
        _check_shape(forms, structure)
    messages, template_tools = request.messages, None
    if not forms.template_takes_calls and any(_has_calls(message) for message in messages):
        messages = calls_as_text(messages, forms.tools or PLAIN)
    if tools and forms.template_takes_tools:
        template_tools = [tool.to_template() for tool in tools]
    elif tools and template is not None:
        # A grammar's own form needs no example: nothing else can be written.
        form = None if is_forced else forms.tools
        text = describe_tools(tools, form, parallel=request.tool_choice.parallel)
        messages = with_instructions(messages, text, shows_system=traits.shows_system)
    return Turn(request, template, forms, messages, template_tools, request.template_kwargs, structure)


async def _choose_template(
    request: ChatRequest, model: ServedModel, choice: FormChoice, *, has_tools: bool
) -> tuple[RequestTemplate | None, TemplateTraits, ModelForms]:
    """The template that writes the prompt, what it shows, and the forms that its source tells. Raises ApiError."""
    found: tuple[RequestTemplate | None, TemplateTraits, ModelForms] = None, SHOWS_NOTHING, choice.of("")
    # Nothing else hangs on what a template shows, and to find that out takes a while where it is a request's own.
    is_probed = has_tools or any(_has_calls(message) for message in request.messages)
    for template in templates_for(model.tokenizer, request.chat_template, has_tools=has_tools):
        traits = await template.traits() if is_probed else SHOWS_NOTHING
        forms = choice.of(template.source, traits)
        found = template, traits, forms
        if forms.template_takes_tools:
            break
    return found


def _checked(request: ChatRequest) -> Structure | None:
    check_tools(request.tools, request.tool_choice, request.tool_path)
    return structure_of(request.tools, request.tool_choice, request.tool_path)


def _check_shape(forms: ModelForms, structure: Structure) -> None:
    """Raises ApiError where calls cannot be made in the structure's place."""
    if forms.tools is not None and forms.tools.shape is None:
        message = (
            f"Invalid '{structure.param}': this model writes calls in a form that cannot stand beside a structure. "
            "Use 'tool_choice' 'none' or 'required', or ask for the structure without 'tools'."
        )
        raise ApiError(ErrorKind.UNSUPPORTED, message, structure.param)


def _has_calls(message: Mapping[str, Any]) -> bool:
    return message["role"] == "tool" or bool(message.get("tool_calls"))
