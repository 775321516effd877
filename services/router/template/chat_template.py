"""Chat templates: Jinja programs that come with a model's tokenizer. Other people's code, it runs in a sandbox.

The sandbox is transformers' own (`render_jinja_template`), so that a template finds what its author tested it with.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from services.router.errors import ApiError, ErrorKind, invalid
from services.router.template.content import ContentForm, content_form
from services.router.template.messages import THOUGHT_FIELDS, forms, join_parts, one_call_each, prints_parts
from services.router.template.probe import (
    TemplateTraits,
    probe_content,
    probe_descriptions,
    probe_several_calls,
    probe_thoughts,
    probe_traits,
)

# What a request's chat_template_kwargs must not replace.
_RESERVED = frozenset(
    {"messages", "conversations", "tools", "documents", "chat_template", "add_generation_prompt"}
    | {"continue_final_message", "return_assistant_tokens_mask"}
)
# What a template raises that cannot do with its input, beside Jinja's own errors.
_STUMBLES = (AttributeError, TypeError, ValueError, ArithmeticError, LookupError, RuntimeError)
# The code of the error where a template is none.
UNPARSABLE = "invalid_chat_template"
_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class ChatTemplate:
    def __init__(self, source: str, special_tokens: Mapping[str, str], known_form: ContentForm | None = None) -> None:
        """`known_form`: what `form_of_content` found out of the same template before."""
        self.source = source
        self._known_form = known_form
        self._special_tokens = dict(special_tokens)
        self._knows_developer = "developer" in source

    @functools.cached_property
    def traits(self) -> TemplateTraits:
        """Found on first access by rendering a few small conversations, each in the forms that a request's messages
        would take."""
        return probe_traits(self.source, self._probe)

    @functools.cached_property
    def form_of_content(self) -> ContentForm:
        """The form of a message's content that the template expects, found by rendering or in its source."""
        return self._known_form or probe_content(self._probe_as_it_is) or content_form(self.source)

    @functools.cached_property
    def _thinks_or_speaks(self) -> bool:
        return probe_thoughts(self._probe)

    @functools.cached_property
    def _shows_one_call(self) -> bool:
        return probe_several_calls(self._probe)

    @functools.cached_property
    def _wants_descriptions(self) -> bool:
        return probe_descriptions(self._probe)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt's text. `messages`, `tools`: as in OpenAI's JSON. `documents`: most templates want `title`
        and `text`. Raises ApiError where the template refuses the messages, or cannot be parsed."""
        prepared = [self._prepare(message) for message in messages]
        if any(len(message.get("tool_calls") or ()) > 1 for message in prepared) and self._shows_one_call:
            prepared = one_call_each(prepared)
        return self._render_prepared(
            prepared,
            tools=self._described(tools or ()),
            documents=documents,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            template_kwargs=template_kwargs,
        )

    def _render_prepared(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        from jinja2.exceptions import TemplateError, TemplateSyntaxError, UndefinedError

        kwargs = self._special_tokens | dict(template_kwargs or {})
        if reserved := _RESERVED & kwargs.keys():
            param = f"chat_template_kwargs.{min(reserved)}"
            raise invalid(f"Invalid '{param}': a template's argument of this name cannot be set.", param)
        failure: Exception | None = None
        printed: str | None = None
        for form in forms(messages, self.form_of_content):
            try:
                text = self._render_form(
                    form,
                    tools=None if not tools else [dict(tool) for tool in tools],
                    documents=None if not documents else [dict(document) for document in documents],
                    add_generation_prompt=add_generation_prompt,
                    continue_final_message=continue_final_message,
                    **kwargs,
                )
            except (*_STUMBLES, UndefinedError) as error:
                # It trips over what it was given; another form may suit it.
                failure = failure or error
                continue
            except TemplateSyntaxError as error:
                raise _unparsable(error.message or "", error.lineno) from None
            except SyntaxError as error:
                # Python's compiler refuses what Jinja made of the template, whose lines are other ones.
                raise _unparsable(error.msg) from None
            except TemplateError as error:
                raise invalid(f"The model's chat template refuses these messages: {error}", "messages") from None
            if not prints_parts(text, form):
                return text
            # It shows a list where the text belongs; another form may suit it.
            printed = text if printed is None else printed
        if printed is not None:
            return printed
        # Its text is the model's, its input the client's.
        raise invalid(f"The model's chat template fails on these messages: {failure}", "messages") from None

    def warm(self) -> str | None:
        """Compiles the template and probes it, so that the first request does not wait for it. Returns why it cannot
        be parsed, or None."""
        try:
            self.render([{"role": "user", "content": "Hello"}])
        except ApiError as error:
            if error.code == UNPARSABLE:
                return error.message
        _ = self.traits, self._thinks_or_speaks, self._shows_one_call, self._wants_descriptions
        return None

    def _probe(self, messages: list[dict[str, Any]], tools: Sequence[Mapping[str, Any]] | None) -> str | None:
        return _attempt(lambda: self._render_prepared(messages, tools=tools))

    def _probe_as_it_is(self, messages: list[dict[str, Any]], tools: Sequence[Mapping[str, Any]] | None) -> str | None:
        """The prompt of the messages in the form in which they are given; None where the template fails on it."""
        return _attempt(
            lambda: self._render_form(
                messages, tools=tools, documents=None, add_generation_prompt=True, **self._special_tokens
            )
        )

    def _render_form(self, messages: list[dict[str, Any]], **arguments: Any) -> str:
        from transformers.utils.chat_template_utils import render_jinja_template

        return str(render_jinja_template([messages], chat_template=self.source, **arguments)[0][0])

    def _prepare(self, message: Mapping[str, Any]) -> dict[str, Any]:
        prepared = dict(message)
        # OpenAI's newer name for the system role, which few templates know.
        if prepared["role"] == "developer" and not self._knows_developer:
            prepared["role"] = "system"
        if (thought := prepared.get("reasoning")) is not None:
            text = text_of(prepared) if prepared.get("tool_calls") else ""
            if text and self._thinks_or_speaks:
                # What was said goes with what was thought: the template has one place for both.
                thought, prepared["content"] = f"{thought}\n{text}", ""
            prepared |= dict.fromkeys(THOUGHT_FIELDS, thought)
        return prepared

    def _described(self, tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """With empty descriptions in place of missing ones, where the template reads them without asking."""
        if all(map(_is_described, tools)) or not self._wants_descriptions:
            return [dict(tool) for tool in tools]
        return [
            dict(tool) if _is_described(tool) else {**tool, "function": {"description": "", **tool["function"]}}
            for tool in tools
        ]


def _is_described(tool: Mapping[str, Any]) -> bool:
    """`tool`: any JSON, where a client brings its own template."""
    function = tool.get("function")
    return not isinstance(function, dict) or "description" in function


def _attempt(render: Callable[[], str]) -> str | None:
    """What a probe renders; None where the template fails. Whatever it raises, the model can be served: a probe gives a
    template what no request may ever give it."""
    try:
        return render()
    except MemoryError:
        # A request's own template has taken its share, and is ended.
        raise
    except Exception:
        return None


def _unparsable(why: str, line: int | None = None) -> ApiError:
    """It names the model: whatever the messages were, no request could use the template."""
    where = "" if line is None else f"line {line}: "
    message = f"The model's chat template cannot be parsed: {where}{why.rstrip('.')}."
    return invalid(message, "model", UNPARSABLE)


def text_of(message: Mapping[str, Any]) -> str:
    """A message's content as one text."""
    content = message.get("content")
    return join_parts(content) if isinstance(content, list) else content or ""


def import_renderer() -> None:
    """Imports what rendering needs: half a second that can pass beside the start."""
    import transformers.utils.chat_template_utils  # noqa: F401


def from_tokenizer_config(config: Mapping[str, Any], name: str = "default") -> ChatTemplate | None:
    """The template in a tokenizer_config.json, or None where it has none. `name`: of several; one alone is the
    default."""
    source = config.get("chat_template")
    if isinstance(source, list):
        named = {entry["name"]: entry["template"] for entry in source if {"name", "template"} <= entry.keys()}
        source = named.get(name)
    elif name != "default":
        source = None
    return ChatTemplate(source, special_tokens(config)) if isinstance(source, str) else None


def special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """The texts of a tokenizer_config.json's special tokens, by the names that templates know them by."""
    tokens = {}
    for name in _SPECIAL_TOKENS:
        token = config.get(name)
        if isinstance(token, Mapping):
            token = token.get("content")
        if isinstance(token, str):
            tokens[name] = token
    return tokens


def no_chat_template(model: str) -> ApiError:
    return ApiError(
        ErrorKind.INVALID_REQUEST,
        f"The model `{model}` has no chat template; use /v1/completions instead.",
        "model",
        "no_chat_template",
    )
