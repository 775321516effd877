"""Seed-OSS: each call is tags, as function_tags.py has them, with values right between their tags.

    <seed:tool_call>
    <function=get_weather>
    <parameter=city>Köln</parameter>
    </function>
    </seed:tool_call>

It reasons between <seed:think> and </seed:think>, and says now and then how many tokens it has left. With a budget of 0
its template opens such a remark in the prompt.
"""

from __future__ import annotations

from services.router.chat.parsers.function_tags import FunctionTags
from services.router.chat.parsers.reasoning import ReasoningForm

SEED_OSS = FunctionTags("<seed:tool_call>", "</seed:tool_call>", line_break="").form()
SEED_THINK = ReasoningForm("<seed:think>", "</seed:think>", opens=("<seed:think><seed:cot_budget_reflect>",))
