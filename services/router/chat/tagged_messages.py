"""Message form of most models: reasoning between tags, then content and calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from services.router.chat.answer_grammar import AnswerForm, CallRules, Tags
from services.router.chat.call_grammar import calls_grammar, talk_grammar
from services.router.chat.message_form import Asked
from services.router.chat.parsers import (
    Feed,
    Functions,
    MessageBuilder,
    Read,
    Reading,
    ReasoningForm,
    ToolForm,
    calls_or_content,
    forced_calls,
    pass_through,
    read_reasoning,
    text_or_calls,
)
from services.router.generation import ChoiceDelta
from services.router.text import Vocabulary


@dataclass(frozen=True, slots=True)
class TaggedMessages:
    """The MessageForm (message_form.py) of models that write their reasoning between tags."""

    # If `reasoning` is None, the parser reports no reasoning. If `tools` is None, it reports no calls.
    reasoning: ReasoningForm | None = None
    tools: ToolForm | None = None

    @property
    def heeds_prompt(self) -> bool:
        return self.reasoning is not None

    @property
    def calls_fit_structures(self) -> bool:
        return self.tools is None or (self.tools.shape is not None and self.tools.shape.fits_structures)

    @property
    def calls_follow_schemas(self) -> bool:
        return self.tools is not None and self.tools.shape is not None

    @property
    def thinking_tags(self) -> tuple[str, str] | None:
        return None if self.reasoning is None else (self.reasoning.begin, self.reasoning.end)

    def plan(self, asked: Asked, prompt_end: str, vocabulary: Vocabulary) -> TaggedPlan:
        free = self.tools if asked.may_call else None
        calls = forced_calls(asked.choice) or (None if free is None else _reader(free, asked))
        reasoning, is_open = self.reasoning, None
        if reasoning is not None:
            is_open = _is_open(reasoning, asked, prompt_end)
            is_free_to = is_open is None and asked.may_think and not asked.is_continued
            if asked.is_constrained and not (is_open or is_free_to):
                # The prompt leaves no reasoning open, and the answer must not begin with reasoning. So the grammar
                # allows no reasoning from the first token on.
                reasoning = None
        is_inside = reasoning is not None and (reasoning.starts_inside if is_open is None else is_open)
        beside = None
        if asked.is_constrained and free is not None:
            beside = _calls_of(free, asked, () if reasoning is None or is_inside else reasoning.begins)
        tags = () if free is None else free.tokens
        if reasoning is None:
            return TaggedPlan(calls=calls, tags=tags, beside_structure=beside)
        return TaggedPlan(
            reasoning,
            calls,
            is_inside=is_inside,
            end_token_id=vocabulary.token_id(reasoning.end),
            token_text=vocabulary.shown_text,
            tags=(*tags, *reasoning.tokens),
            beside_structure=beside,
        )


def _is_open(reasoning: ReasoningForm, asked: Asked, prompt_end: str) -> bool | None:
    """Returns True if the prompt ends inside reasoning, False if it ends after reasoning, and None if no tag shows
    either."""
    if not asked.is_continued:
        return reasoning.is_open(prompt_end)
    # In a continued message, the last tag decides whether reasoning is open.
    last = max(reasoning.tokens, key=prompt_end.rfind)
    return reasoning.is_open(last if last in prompt_end else "")


def _reader(form: ToolForm, asked: Asked) -> Read:
    if asked.has_structure:
        return calls_or_content(form, asked.schemas)
    return text_or_calls(form, asked.schemas) if asked.schemas else form.read


def _calls_of(form: ToolForm, asked: Asked, begins: Sequence[str] = ()) -> Callable[[Tags], CallRules]:
    tools, several, schemas = asked.tools, asked.choice.parallel, asked.schemas
    if asked.has_structure:
        return lambda tags: calls_grammar(tools, form, tags, several=several, schemas=schemas)
    return lambda tags: talk_grammar(tools, form, tags, several=several, schemas=schemas, begins=begins)


@dataclass(frozen=True, slots=True)
class TaggedPlan:
    """The MessagePlan (message_form.py) for answers with reasoning between tags."""

    # If `reasoning` is None, answers have no reasoning. If `calls` is None, they have no calls.
    reasoning: ReasoningForm | None = None
    calls: Read | None = None
    is_inside: bool = False
    # The end tag's token id, if the tag is a single token. Otherwise the parser finds the end tag in the text, and the
    # lengths of the tokens' texts (`token_text`) show which token is the last one of the reasoning.
    end_token_id: int | None = None
    token_text: Callable[[int], str] = str
    tags: tuple[str, ...] = ()
    # Returns the grammar rules of the calls that are allowed as an alternative to the structure or, if there is none,
    # besides text. None: no grammar constrains the answers, or no calls are allowed.
    beside_structure: Callable[[Tags], CallRules] | None = None

    @property
    def is_plain(self) -> bool:
        return self.reasoning is None and self.calls is None

    @property
    def reasons(self) -> bool:
        return self.reasoning is not None

    def read(self, feed: Feed, builder: MessageBuilder, functions: Functions) -> Reading[None]:
        if self.reasoning is not None:
            yield from read_reasoning(feed, builder, self.reasoning, self.is_inside)
        if self.calls is not None:
            yield from self.calls(feed, builder, functions)
        yield from pass_through(feed, builder)

    def count(self, builder: MessageBuilder) -> _TaggedCount | None:
        return None if self.reasoning is None else _TaggedCount(self, builder)

    def grammar(self, tags: Tags) -> AnswerForm:
        beside = self.beside_structure
        return AnswerForm(tags, self.reasoning, self.is_inside, None if beside is None else beside(tags))


class _TaggedCount:
    """Counts the reasoning tokens, as a ReasoningCount (message_form.py): all tokens up to and including the one that
    ends the reasoning."""

    __slots__ = ("_builder", "_is_over", "_num_tokens", "_plan")

    def __init__(self, plan: TaggedPlan, builder: MessageBuilder) -> None:
        self._plan = plan
        self._builder = builder
        self._num_tokens = 0
        self._is_over = False

    @property
    def num_tokens(self) -> int:
        return self._num_tokens if self._builder.has_reasoned else 0

    def add(self, delta: ChoiceDelta) -> None:
        """Counts the delta's tokens. Text can lag behind its tokens, so an end tag that is a single token is found by
        its token id."""
        if self._is_over:
            return
        end, token_ids, builder = self._plan.end_token_id, delta.token_ids, self._builder
        if end is not None and end in token_ids:
            self._num_tokens += token_ids.index(end) + 1
            self._is_over = True
            return
        self._is_over = builder.reasoning_is_over
        num_chars = len(delta.text) - builder.num_left_by_reasoning
        for token_id in token_ids:
            if self._is_over and num_chars <= 0:
                return
            self._num_tokens += 1
            num_chars -= len(self._plan.token_text(token_id))
