"""The answers of Ollama's API."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from services.router.openai.replies import TokenLogprob
from services.router.openapi.operation import Reply, may_lack

Timestamp = Annotated[str, Field(description="RFC 3339.")]


class OllamaFunction(Reply):
    name: str
    arguments: dict[str, Any]


class OllamaCall(Reply):
    id: str
    function: OllamaFunction


class OllamaAnswerMessage(Reply):
    role: Literal["assistant"]
    content: str
    thinking: str = may_lack("Where the model thought.")
    tool_calls: list[OllamaCall] = may_lack("Where the message makes some.")


class OllamaAnswer(Reply):
    """Of a whole answer, and of each line of one that streams, which has what is new. The figures come with the last
    line, unless the request had no prompt."""

    model: str = Field(description="As the request named it.")
    created_at: Timestamp
    done: bool = Field(description="Whether it is the last line, or a whole answer.")
    done_reason: Literal["stop", "length", "load", "unload"] = may_lack(
        "Where it is done. `load` and `unload` answer requests without a prompt."
    )
    logprobs: list[TokenLogprob] = may_lack("Where they were asked for.")
    total_duration: int = may_lack("Nanoseconds.")
    load_duration: int = may_lack("Nanoseconds.")
    prompt_eval_count: int = may_lack("Tokens of the prompt.")
    prompt_eval_duration: int = may_lack("Nanoseconds.")
    eval_count: int = may_lack("Tokens of the answer.")
    eval_duration: int = may_lack("Nanoseconds.")


class ChatAnswer(OllamaAnswer):
    message: OllamaAnswerMessage


class GenerateAnswer(OllamaAnswer):
    response: str
    thinking: str = may_lack("Where the model thought.")


class EmbedAnswer(Reply):
    model: str = Field(description="As the request named it.")
    embeddings: list[list[float]] = Field(description="In the order of the inputs, each of length 1.")
    total_duration: int = Field(description="Nanoseconds.")
    load_duration: int = Field(description="0: it is loaded before anybody asks.")
    prompt_eval_count: int = Field(description="Tokens of the inputs.")


class ModelDetails(Reply):
    parent_model: str
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class OllamaModel(Reply):
    name: str
    model: str = Field(description="The same as `name`.")
    modified_at: Timestamp
    size: int = Field(description="0: a router does not know it.")
    digest: str
    details: ModelDetails


class OllamaModels(Reply):
    models: list[OllamaModel]


class RunningModel(OllamaModel):
    expires_at: Timestamp
    size_vram: int = Field(description="0: a router does not know it.")
    context_length: int


class RunningModels(Reply):
    models: list[RunningModel]


class ModelDescription(Reply):
    modelfile: str
    parameters: str
    template: str = Field(description="The chat template, in Jinja's language.")
    details: ModelDetails
    model_info: dict[str, str | int]
    capabilities: list[Literal["completion", "tools", "thinking"]]
    modified_at: Timestamp


class ApiVersion(Reply):
    version: str = Field(description="The release of Ollama whose API this is.")


class OllamaError(Reply):
    error: str
