"""Chat templates: Jinja programs that come with a model's tokenizer. They are untrusted code and run in a sandbox.

The sandbox is transformers' own (`render_jinja_template`), so that a template runs as its author tested it.
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

# Arguments that a request's chat_template_kwargs must not set.
_RESERVED = frozenset(
    {"messages", "conversations", "tools", "documents", "chat_template", "add_generation_prompt"}
    | {"continue_final_message", "return_assistant_tokens_mask"}
)
# Exceptions, besides Jinja's own, that a template raises if it cannot process its input.
_STUMBLES = (AttributeError, TypeError, ValueError, ArithmeticError, LookupError, RuntimeError)
# Error code for a template that cannot be parsed.
UNPARSABLE = "invalid_chat_template"
_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class ChatTemplate:
    def __init__(self, source: str, special_tokens: Mapping[str, str], known_form: ContentForm | None = None) -> None:
        """`known_form`: the result of `form_of_content` for the same template, if it is known."""
        self.source = source
        self._known_form = known_form
        self._special_tokens = dict(special_tokens)
        self._knows_developer = "developer" in source

    @functools.cached_property
    def traits(self) -> TemplateTraits:
        """Tells which parts of a request the template writes to the prompt. To find out, the first access renders a few
        small conversations, in the same forms (messages.py) as the conversation of a request."""
        return probe_traits(self.source, self._probe)

    @functools.cached_property
    def form_of_content(self) -> ContentForm:
        """The form of message content that the template expects, found by rendering it or by parsing its source."""
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
        """Returns the prompt's text. `messages`, `tools`: in OpenAI's JSON form. `documents`: most templates expect
        `title` and `text`. Raises ApiError if the template refuses the messages or cannot be parsed."""
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
            raise invalid(f"Invalid '{param}': requests cannot set this template argument.", param)
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
                # The template cannot process this form; another form might work.
                failure = failure or error
                continue
            except TemplateSyntaxError as error:
                raise _unparsable(error.message or "", error.lineno) from None
            except SyntaxError as error:
                # Python's compiler rejects the code that Jinja generated. The error's line number is not reported,
                # because it counts the lines of this code, not of the template.
                raise _unparsable(error.msg) from None
            except TemplateError as error:
                raise invalid(f"The model's chat template refuses these messages: {error}", "messages") from None
            if not prints_parts(text, form):
                return text
            # The template printed a list of content parts instead of their text; another form might work.
            printed = text if printed is None else printed
        if printed is not None:
            return printed
        # The template comes from the model, and the template's input from the client, so the error names both.
        raise invalid(f"The model's chat template fails on these messages: {failure}", "messages") from None

    def warm(self) -> str | None:
        """Compiles and probes the template, so that the first request does not wait for it. Returns why the template
        cannot be parsed, or None."""
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
        """Renders the messages without `_prepare`, which would change them. Returns None if the template fails."""
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
        # `developer` is OpenAI's newer name for the system role. Few templates support it.
        if prepared["role"] == "developer" and not self._knows_developer:
            prepared["role"] = "system"
        if (thought := prepared.get("reasoning")) is not None:
            text = text_of(prepared) if prepared.get("tool_calls") else ""
            if text and self._thinks_or_speaks:
                # The template shows either the reasoning or the content, so the content is appended to the reasoning.
                thought, prepared["content"] = f"{thought}\n{text}", ""
            prepared |= dict.fromkeys(THOUGHT_FIELDS, thought)
        return prepared

    def _described(self, tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Returns the tools. If the template requires descriptions, tools without a description get an empty one."""
        if all(map(_is_described, tools)) or not self._wants_descriptions:
            return [dict(tool) for tool in tools]
        return [
            dict(tool) if _is_described(tool) else {**tool, "function": {"description": "", **tool["function"]}}
            for tool in tools
        ]


def _is_described(tool: Mapping[str, Any]) -> bool:
    """Returns whether the tool has a description. A tool without a `function` object counts as described: if the client
    sends a template of its own, a tool can be any JSON object.
    """
    function = tool.get("function")
    return not isinstance(function, dict) or "description" in function


def _attempt(render: Callable[[], str]) -> str | None:
    """Returns the result of `render`; None if the template fails. Any exception counts as a failure, because a probe
    passes input that requests might never contain."""
    try:
        return render()
    except MemoryError:
        # Templates from requests are rendered in a child process (process.py) with limited memory. There, this error
        # means that the template has used up the memory, so the process must end.
        raise
    except Exception:
        return None


def _unparsable(why: str, line: int | None = None) -> ApiError:
    """Returns an error whose param is the model, not the messages, because the template fails for every request."""
    where = "" if line is None else f"line {line}: "
    message = f"The model's chat template cannot be parsed: {where}{why.rstrip('.')}."
    return invalid(message, "model", UNPARSABLE)


def text_of(message: Mapping[str, Any]) -> str:
    """Returns a message's content as one text."""
    content = message.get("content")
    return join_parts(content) if isinstance(content, list) else content or ""


def import_renderer() -> None:
    """Imports the libraries for rendering. The import takes half a second, so the router runs it in parallel to other
    work at its start.
    """
    import transformers.utils.chat_template_utils  # noqa: F401 - the import itself is the work


def from_tokenizer_config(config: Mapping[str, Any], name: str = "default") -> ChatTemplate | None:
    """Returns the template in a tokenizer_config.json; None if it has no template of this name. A template that is not
    in a list has the name `default`."""
    source = config.get("chat_template")
    if isinstance(source, list):
        named = {entry["name"]: entry["template"] for entry in source if {"name", "template"} <= entry.keys()}
        source = named.get(name)
    elif name != "default":
        source = None
    return ChatTemplate(source, special_tokens(config)) if isinstance(source, str) else None


def special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Returns the texts of a tokenizer_config.json's special tokens, by the names that templates use."""
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
