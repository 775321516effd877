"""The answers of Ollama's API."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from services.router.openai.replies import TokenLogprob
from services.router.openapi.operation import Reply

Timestamp = Annotated[str, Field(description="RFC 3339.")]
Nanoseconds = Annotated[int, Field(description="Nanoseconds; where it is done.")]


class OllamaFunction(Reply):
    name: str
    arguments: dict[str, Any]


class OllamaCall(Reply):
    id: str
    function: OllamaFunction


class OllamaAnswerMessage(Reply):
    role: Literal["assistant"]
    content: str
    thinking: str = Field(None, description="Where the model thought.")
    tool_calls: list[OllamaCall] = Field(None, description="Where the message makes some.")


class OllamaAnswer(Reply):
    """Of a whole answer, and of each line of one that streams, which has what is new. The figures come with the last
    line, unless the request had no prompt."""

    model: str = Field(description="As the request named it.")
    created_at: Timestamp
    done: bool = Field(description="Whether it is the last line, or a whole answer.")
    done_reason: Literal["stop", "length", "load", "unload"] = Field(
        None, description="Where it is done. `load` and `unload` answer requests without a prompt."
    )
    logprobs: list[TokenLogprob] = Field(None, description="Where they were asked for.")
    total_duration: Nanoseconds = Field(None)
    load_duration: Nanoseconds = Field(None)
    prompt_eval_count: int = Field(None, description="Tokens of the prompt.")
    prompt_eval_duration: Nanoseconds = Field(None)
    eval_count: int = Field(None, description="Tokens of the answer.")
    eval_duration: Nanoseconds = Field(None)


class ChatAnswer(OllamaAnswer):
    message: OllamaAnswerMessage


class GenerateAnswer(OllamaAnswer):
    response: str
    thinking: str = Field(None, description="Where the model thought.")


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
