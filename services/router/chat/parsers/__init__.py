"""Forms in which models write tool calls and reasoning. Most files contain one form and its incremental parser; the
others contain what several parsers share."""

from services.router.chat.parsers.alternatives import calls_or_content, text_or_calls
from services.router.chat.parsers.builder import Ids, MessageBuilder
from services.router.chat.parsers.content import pass_through
from services.router.chat.parsers.deepseek import DEEPSEEK_V3, DEEPSEEK_V31
from services.router.chat.parsers.feed import Feed, Reading
from services.router.chat.parsers.forced import forced_calls
from services.router.chat.parsers.form import (
    CallsGrammar,
    Functions,
    Listed,
    Marked,
    Objects,
    Read,
    Schemas,
    ToolForm,
    WantedCalls,
    openai_id,
)
from services.router.chat.parsers.function_tags import QWEN3_CODER, SEED_OSS, SEED_THINK
from services.router.chat.parsers.gemma import FUNCTIONGEMMA, GEMMA4, GEMMA4_THOUGHT
from services.router.chat.parsers.granite import GRANITE, GRANITE_THOUGHT
from services.router.chat.parsers.harmony import (
    CHANNEL,
    CONSTRAIN,
    END,
    ENDS,
    FINAL,
    FUNCTIONS,
    HARMONY_CALLS,
    HEADER_BEGINS,
    MAX_HEADER_CHARS,
    MESSAGE,
    START,
    TOKENS,
    HarmonyReader,
    Header,
    Kind,
)
from services.router.chat.parsers.hermes import HERMES
from services.router.chat.parsers.hunyuan_a13b import HUNYUAN_A13B
from services.router.chat.parsers.internlm import INTERNLM
from services.router.chat.parsers.llama3_json import LLAMA3_JSON, LLAMA4_JSON
from services.router.chat.parsers.mistral import MISTRAL
from services.router.chat.parsers.plain import PLAIN
from services.router.chat.parsers.pythonic import PYTHONIC
from services.router.chat.parsers.reasoning import ReasoningForm, read_reasoning
from services.router.chat.parsers.xlam import XLAM

__all__ = [
    "CHANNEL",
    "CONSTRAIN",
    "DEEPSEEK_V3",
    "DEEPSEEK_V31",
    "END",
    "ENDS",
    "FINAL",
    "FUNCTIONGEMMA",
    "FUNCTIONS",
    "GEMMA4",
    "GEMMA4_THOUGHT",
    "GRANITE",
    "GRANITE_THOUGHT",
    "HARMONY_CALLS",
    "HEADER_BEGINS",
    "HERMES",
    "HUNYUAN_A13B",
    "INTERNLM",
    "LLAMA3_JSON",
    "LLAMA4_JSON",
    "MAX_HEADER_CHARS",
    "MESSAGE",
    "MISTRAL",
    "PLAIN",
    "PYTHONIC",
    "QWEN3_CODER",
    "SEED_OSS",
    "SEED_THINK",
    "START",
    "TOKENS",
    "XLAM",
    "CallsGrammar",
    "Feed",
    "Functions",
    "HarmonyReader",
    "Header",
    "Ids",
    "Kind",
    "Listed",
    "Marked",
    "MessageBuilder",
    "Objects",
    "Read",
    "Reading",
    "ReasoningForm",
    "Schemas",
    "ToolForm",
    "WantedCalls",
    "calls_or_content",
    "forced_calls",
    "openai_id",
    "pass_through",
    "read_reasoning",
    "text_or_calls",
]
