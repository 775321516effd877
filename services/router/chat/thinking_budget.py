"""A request's limit on the number of reasoning tokens."""

from __future__ import annotations

from dataclasses import dataclass

from services.router.chat.message_form import MessageForm, MessagePlan
from services.router.constraints import ThinkingLimit
from services.router.errors import ApiError, ErrorKind
from services.router.text import Vocabulary


@dataclass(frozen=True, slots=True)
class ThinkingBudget:
    num_tokens: int
    # Name of the limit in the API.
    param: str = "thinking_token_budget"
    # Whether the budget is ignored, and not refused, for a model whose reasoning cannot be limited.
    is_optional: bool = False

    def limit(self, form: MessageForm, plan: MessagePlan, vocabulary: Vocabulary) -> ThinkingLimit | None:
        """Returns the limit that the worker enforces; None if this request's answers have no reasoning. `form` belongs
        to the model, `plan` to the request. If the model's reasoning cannot be limited, raises ApiError, or returns
        None if the budget is optional."""
        tags = form.thinking_tags
        begin = None if tags is None else vocabulary.token_id(tags[0])
        end = None if tags is None else vocabulary.token_id(tags[1])
        if end is None or begin is None:
            if self.is_optional:
                return None
            why = "does not reason" if tags is None else "marks its reasoning with text that is not a single token"
            message = f"'{self.param}' is not supported: this model {why}. Remove it from your request."
            raise ApiError(ErrorKind.UNSUPPORTED, message, self.param)
        if not plan.reasons:
            return None
        return ThinkingLimit(self.num_tokens, end, None if plan.is_inside else begin)
