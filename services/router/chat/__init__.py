"""Chat requests: the type to which every chat API converts its requests, and the code that answers requests of this
type.
"""

from services.router.chat.fitting import encode_plan, fit
from services.router.chat.forms import FormChoice
from services.router.chat.message import EndReason, Message, MessageDelta, MessageParser, PlainParser, ToolCallDelta
from services.router.chat.plan import plan_chat
from services.router.chat.preparation import conversation_key, prepare, with_reasoning
from services.router.chat.request import ChatRequest, Overflow
from services.router.chat.thinking import ReasoningEffort, effort_kwargs, merged_kwargs, thinking_kwargs, thought
from services.router.chat.thinking_budget import ThinkingBudget
from services.router.chat.tools import (
    AS_IT_LIKES,
    MAX_SCHEMA_CHARS,
    MAX_TOOLS,
    OPENAI_PATH,
    Tool,
    ToolChoice,
    ToolMode,
    ToolPath,
    check_call_made,
    check_tool_messages,
)

__all__ = [
    "AS_IT_LIKES",
    "MAX_SCHEMA_CHARS",
    "MAX_TOOLS",
    "OPENAI_PATH",
    "ChatRequest",
    "EndReason",
    "FormChoice",
    "Message",
    "MessageDelta",
    "MessageParser",
    "Overflow",
    "PlainParser",
    "ReasoningEffort",
    "ThinkingBudget",
    "Tool",
    "ToolCallDelta",
    "ToolChoice",
    "ToolMode",
    "ToolPath",
    "check_call_made",
    "check_tool_messages",
    "conversation_key",
    "effort_kwargs",
    "encode_plan",
    "fit",
    "merged_kwargs",
    "plan_chat",
    "prepare",
    "thinking_kwargs",
    "thought",
    "with_reasoning",
]
