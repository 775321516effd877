"""How many tokens a model may reason before its answer, as a request says it."""

from __future__ import annotations

from dataclasses import dataclass

from services.router.chat.parsers.reasoning import ReasoningForm
from services.router.chat.text_parser import TextPlan
from services.router.constraints import ThinkingLimit
from services.router.detokenizer import Vocabulary
from services.router.errors import ApiError, ErrorKind


@dataclass(frozen=True, slots=True)
class ThinkingBudget:
    num_tokens: int
    # What the API calls it.
    param: str = "thinking_token_budget"
    # Whether it means nothing to a model that does not reason, and is no error there.
    is_optional: bool = False

    def limit(self, form: ReasoningForm | None, plan: TextPlan, vocabulary: Vocabulary) -> ThinkingLimit | None:
        """What a worker holds the output to. `form`: in which the model reasons. `plan`: how this request's text is
        read; where it has no reasoning, there is none to limit. Raises ApiError for a model that cannot be held to
        it."""
        end = None if form is None else vocabulary.token_id(form.end)
        begin = None if form is None else vocabulary.token_id(form.begin)
        if end is None or begin is None:
            if self.is_optional:
                return None
            why = "does not reason" if form is None else "marks its reasoning with text that is no single token"
            message = f"'{self.param}' is not supported: this model {why}. Remove it from your request."
            raise ApiError(ErrorKind.UNSUPPORTED, message, self.param)
        if plan.reasoning is None:
            return None
        return ThinkingLimit(self.num_tokens, end, None if plan.is_inside else begin)
