"""The operations of Ollama's API, for the OpenAPI document."""

from __future__ import annotations

from services.router.apis.ollama.chat import ChatBody
from services.router.apis.ollama.embed import EmbedBody
from services.router.apis.ollama.generate import GenerateBody
from services.router.apis.ollama.models import ShowBody
from services.router.apis.ollama.replies import (
    ApiVersion,
    ChatAnswer,
    EmbedAnswer,
    GenerateAnswer,
    ModelDescription,
    OllamaError,
    OllamaModels,
    RunningModels,
)
from services.router.apis.ollama.writer import NDJSON
from services.router.http import Example, Operation

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
        "The answer is streamed as one JSON object per line, unless `stream` is false. Without messages, nothing is "
        "generated.",
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
        "The answer is streamed as one JSON object per line, unless `stream` is false. The model's chat template is "
        "applied to the prompt, unless `raw` is true.",
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
        "Texts that are too long for the model are cut, unless `truncate` is false.",
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
        "GET", "/api/ps", "ollamaRunning", _TAG, "Lists the loaded models", reply=RunningModels,
        error=OllamaError,
    ),
    Operation(
        "GET", "/api/version", "ollamaVersion", _TAG, "Returns the release of Ollama whose API this server follows",
        reply=ApiVersion,
        error=OllamaError, needs_key=False,
    ),
    Operation(
        "GET", "/", "ollamaRoot", _TAG, "Answers `Ollama is running`", "Ollama clients use it to find the server.",
        content_type="text/plain", error=OllamaError, needs_key=False,
    ),
)  # fmt: skip
