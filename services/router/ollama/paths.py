"""What Ollama's API serves, for the document."""

from __future__ import annotations

from services.router.ollama.chat import ChatBody
from services.router.ollama.embed import EmbedBody
from services.router.ollama.generate import GenerateBody
from services.router.ollama.replies import (
    ApiVersion,
    ChatAnswer,
    EmbedAnswer,
    GenerateAnswer,
    ModelDescription,
    OllamaError,
    OllamaModels,
    RunningModels,
)
from services.router.ollama.show import ShowBody
from services.router.ollama.writer import NDJSON
from services.router.openapi.operation import Example, Operation

_TAG = "Ollama"
_MODEL = "quire-chat"
_TEXT = "What is 7 plus 5?"
_QUESTION = [{"role": "user", "content": _TEXT}]
_SHORT = {"num_predict": 16}
_ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {
            "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}  # fmt: skip

OPERATIONS = (
    Operation(
        "POST", "/api/chat", "ollamaChat", _TAG, "Answers a conversation",
        "As Ollama's: lines of JSON, unless `stream` is false. Without messages, nothing is asked of the model.",
        body=ChatBody, reply=ChatAnswer, event=ChatAnswer, event_type=NDJSON, error=OllamaError,
        examples=(
            Example("A question, streamed", {"model": _MODEL, "messages": _QUESTION, "options": _SHORT}),
            Example("Whole", {"model": _MODEL, "messages": _QUESTION, "options": _SHORT, "stream": False}),
            Example(
                "With a tool",
                {"model": _MODEL, "messages": _QUESTION, "options": _SHORT, "stream": False, "tools": [_ADD]},
            ),
        ),
        names_model=True, may_overload=True,
    ),
    Operation(
        "POST", "/api/generate", "ollamaGenerate", _TAG, "Answers a prompt",
        "As Ollama's: lines of JSON, unless `stream` is false. The prompt goes through the model's chat template, "
        "unless it is `raw`.",
        body=GenerateBody, reply=GenerateAnswer, event=GenerateAnswer, event_type=NDJSON, error=OllamaError,
        examples=(
            Example("A prompt", {"model": _MODEL, "prompt": _TEXT, "options": _SHORT, "stream": False}),
            Example(
                "A text to continue, streamed", {"model": _MODEL, "prompt": "One, two,", "raw": True, "options": _SHORT}
            ),
        ),
        names_model=True, may_overload=True,
    ),
    Operation(
        "POST", "/api/embed", "ollamaEmbed", _TAG, "Embeds texts",
        "Longer texts than the model takes are cut, unless `truncate` is false.",
        body=EmbedBody, reply=EmbedAnswer, error=OllamaError,
        examples=(Example("Two texts", {"model": _MODEL, "input": ["It rains in Bonn.", "The sum is twelve."]}),),
        names_model=True, may_overload=True,
    ),
    Operation(
        "POST", "/api/show", "ollamaShow", _TAG, "Describes a model", "`name` is an older name of `model`.",
        body=ShowBody, reply=ModelDescription, error=OllamaError,
        examples=(Example("The bundled model", {"model": _MODEL}),), names_model=True,
    ),
    Operation("GET", "/api/tags", "ollamaTags", _TAG, "Lists the models", reply=OllamaModels, error=OllamaError),
    Operation(
        "GET", "/api/ps", "ollamaRunning", _TAG, "Lists the models, all of which are loaded", reply=RunningModels,
        error=OllamaError,
    ),
    Operation(
        "GET", "/api/version", "ollamaVersion", _TAG, "The release of Ollama whose API this is", reply=ApiVersion,
        error=OllamaError, needs_key=False,
    ),
    Operation(
        "GET", "/", "ollamaRoot", _TAG, "Says `Ollama is running`", "So clients see that a server is there.",
        content_type="text/plain", error=OllamaError, needs_key=False,
    ),
)  # fmt: skip
