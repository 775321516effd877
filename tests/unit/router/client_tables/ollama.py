"""Fields of Ollama's API."""

from __future__ import annotations

from typing import Any

from services.router.apis.ollama.chat import (
    CalledFunction,
    CallParam,
    ChatBody,
    FunctionParam,
    OllamaMessage,
    OllamaTool,
)
from services.router.apis.ollama.embed import EmbedBody
from services.router.apis.ollama.generate import GenerateBody
from services.router.apis.ollama.options import Options
from tests.unit.router.client_tables.fields import FUNCTION, USER, Fields

_LOADED = "It says how Ollama loads a model; this server has loaded it."


def _ollama_call(call: dict[str, Any]) -> dict[str, Any]:
    return {"model": "m", "messages": [USER, {"role": "assistant", "tool_calls": [call]}]}


TABLE: dict[str, Fields] = {
    "ollama.chat": Fields(
        ChatBody, ChatBody, lambda given: {"model": "m", "messages": [USER]} | given,
        "format logprobs messages model options stream think tools top_logprobs", ignored={"keep_alive": _LOADED},
    ),
    "ollama.generate": Fields(
        GenerateBody, GenerateBody, lambda given: {"model": "m", "prompt": "x"} | given,
        "format logprobs model options prompt raw stream system think top_logprobs",
        ignored={"keep_alive": _LOADED},
        refused={
            "context": [1], "images": ["x"], "suffix": "x", "template": "x", "height": 8, "steps": 8, "width": 8,
        },
    ),
    "ollama.embed": Fields(
        EmbedBody, EmbedBody, lambda given: {"model": "m", "input": "x"} | given,
        "dimensions input model truncate", ignored={"keep_alive": _LOADED, "options": _LOADED},
    ),
    "ollama.options": Fields(
        Options, ChatBody, lambda given: {"model": "m", "messages": [USER], "options": given},
        "frequency_penalty num_predict presence_penalty repeat_last_n repeat_penalty seed stop temperature top_k top_p",
        ignored={
            **dict.fromkeys(
                ("embedding_only", "f16_kv", "logits_all", "low_vram", "main_gpu", "num_batch", "num_ctx", "num_gpu",
                 "num_thread", "numa", "use_mlock", "use_mmap", "vocab_only"), _LOADED,
            ),
            "mirostat_eta": "It has no effect without `mirostat`.",
            "mirostat_tau": "It has no effect without `mirostat`.",
            "num_keep": "The context is never shifted.",
            "penalize_newline": "Ollama's own runner ignores it.",
        },
        refused={"mirostat": 1, "tfs_z": 0.5, "typical_p": 0.5},
    ),
    "ollama.message": Fields(
        OllamaMessage, ChatBody, lambda given: {"model": "m", "messages": [USER | given]},
        "content role thinking tool_calls tool_name", refused={"images": ["x"]},
    ),
    "ollama.tool_call": Fields(
        CallParam, ChatBody, lambda given: _ollama_call({"function": {"name": "add", "arguments": {}}} | given),
        "function",
    ),
    "ollama.tool_call.function": Fields(
        CalledFunction, ChatBody, lambda given: _ollama_call({"function": {"name": "add", "arguments": {}} | given}),
        "arguments name",
    ),
    "ollama.function": Fields(
        FunctionParam, ChatBody,
        lambda given: {"model": "m", "messages": [USER], "tools": [{"function": FUNCTION | given}]},
        "description name parameters",
    ),
    "ollama.tool": Fields(
        OllamaTool, ChatBody,
        lambda given: {"model": "m", "messages": [USER], "tools": [{"function": FUNCTION} | given]}, "function type",
    ),
}  # fmt: skip
