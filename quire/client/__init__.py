"""The typed Python client of quire.inference.v1, for threads (`Client`) and for asyncio (`AsyncClient`)."""

from quire.client.aio import AsyncClient, AsyncStream
from quire.client.errors import QuireError, StreamCutError
from quire.client.options import ChatOptions, EmbedOptions, Options, ScoreOptions, TemplateOptions
from quire.client.results import (
    Choice,
    Delta,
    Embeddings,
    Model,
    Result,
    Scores,
    Timings,
    TokenLogprob,
    ToolCall,
    ToolCallDelta,
    Usage,
)
from quire.client.sync import Client, Stream
from quire.client.tools import Tool

__all__ = [
    "AsyncClient",
    "AsyncStream",
    "ChatOptions",
    "Choice",
    "Client",
    "Delta",
    "EmbedOptions",
    "Embeddings",
    "Model",
    "Options",
    "QuireError",
    "Result",
    "ScoreOptions",
    "Scores",
    "Stream",
    "StreamCutError",
    "TemplateOptions",
    "Timings",
    "TokenLogprob",
    "Tool",
    "ToolCall",
    "ToolCallDelta",
    "Usage",
]
