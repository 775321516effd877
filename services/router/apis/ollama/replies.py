"""Types of the answers of Ollama's API."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from services.router.http import Reply, TokenLogprob, may_lack

Timestamp = Annotated[str, Field(description="Time in RFC 3339 format.")]


class OllamaFunction(Reply):
    name: str
    arguments: dict[str, Any]


class OllamaCall(Reply):
    id: str
    function: OllamaFunction


class OllamaAnswerMessage(Reply):
    role: Literal["assistant"]
    content: str
    thinking: str = may_lack("The model's reasoning, if there is any.")
    tool_calls: list[OllamaCall] = may_lack("Tool calls of the message, if there are any.")


class OllamaAnswer(Reply):
    """A whole answer, or one line of a streamed answer. A line has only the text that is new. The last line, like a
    whole answer, also has the durations and token counts, unless the request had no prompt."""

    model: str = Field(description="The request's name of the model.")
    created_at: Timestamp
    done: bool = Field(description="True on the last line of a stream, and on an answer that is not streamed.")
    done_reason: Literal["stop", "length", "load", "unload"] = may_lack(
        "Why the answer ended, once it is done. `load` and `unload`: the request had no prompt."
    )
    logprobs: list[TokenLogprob] = may_lack("Log probabilities, if the request asks for them.")
    total_duration: int = may_lack("Duration in nanoseconds.")
    load_duration: int = may_lack("Duration in nanoseconds.")
    prompt_eval_count: int = may_lack("Number of prompt tokens.")
    prompt_eval_duration: int = may_lack("Duration in nanoseconds.")
    eval_count: int = may_lack("Number of tokens in the answer.")
    eval_duration: int = may_lack("Duration in nanoseconds.")


class ChatAnswer(OllamaAnswer):
    message: OllamaAnswerMessage


class GenerateAnswer(OllamaAnswer):
    response: str
    thinking: str = may_lack("The model's reasoning, if there is any.")


class EmbedAnswer(Reply):
    model: str = Field(description="The request's name of the model.")
    embeddings: list[list[float]] = Field(description="Embeddings in the order of the inputs, scaled to length 1.")
    total_duration: int = Field(description="Duration in nanoseconds.")
    load_duration: int = Field(description="Always 0: the model is loaded before the first request.")
    prompt_eval_count: int = Field(description="Number of tokens in all inputs.")


class ModelDetails(Reply):
    parent_model: str
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class OllamaModel(Reply):
    name: str
    model: str = Field(description="Equal to `name`.")
    modified_at: Timestamp
    size: int = Field(description="Always 0: a router does not know it.")
    digest: str
    details: ModelDetails


class OllamaModels(Reply):
    models: list[OllamaModel]


class RunningModel(OllamaModel):
    expires_at: Timestamp
    size_vram: int = Field(description="Always 0: a router does not know it.")
    context_length: int


class RunningModels(Reply):
    models: list[RunningModel]


class ModelDescription(Reply):
    modelfile: str
    parameters: str
    template: str = Field(description="Chat template of the model, in Jinja.")
    details: ModelDetails
    model_info: dict[str, str | int]
    capabilities: list[Literal["completion", "embedding", "tools", "thinking"]]
    modified_at: Timestamp


class ApiVersion(Reply):
    version: str = Field(description="Release of Ollama whose API this server follows.")


class OllamaError(Reply):
    error: str
