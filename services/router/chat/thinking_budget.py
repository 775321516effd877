"""How many tokens a model may reason before its answer, as a request says it."""

from __future__ import annotations

from dataclasses import dataclass

from services.router.chat.message_form import MessageForm, MessagePlan
from services.router.constraints import ThinkingLimit
from services.router.errors import ApiError, ErrorKind
from services.router.text import Vocabulary


@dataclass(frozen=True, slots=True)
class ThinkingBudget:
    num_tokens: int
    # What the API calls it.
    param: str = "thinking_token_budget"
    # Whether it means nothing to a model that does not reason, and is no error there.
    is_optional: bool = False

    def limit(self, form: MessageForm, plan: MessagePlan, vocabulary: Vocabulary) -> ThinkingLimit | None:
        """What a worker holds the output to. `form`: in which the model writes. `plan`: how this request's answers are
        written; where they have no reasoning, there is none to limit. Raises ApiError for a model that cannot be held
        to it."""
        tags = form.thinking_tags
        begin = None if tags is None else vocabulary.token_id(tags[0])
        end = None if tags is None else vocabulary.token_id(tags[1])
        if end is None or begin is None:
            if self.is_optional:
                return None
            why = "does not reason" if tags is None else "marks its reasoning with text that is no single token"
            message = f"'{self.param}' is not supported: this model {why}. Remove it from your request."
            raise ApiError(ErrorKind.UNSUPPORTED, message, self.param)
        if not plan.reasons:
            return None
        return ThinkingLimit(self.num_tokens, end, None if plan.is_inside else begin)
