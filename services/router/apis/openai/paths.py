"""The operations of OpenAI's API and of vLLM's additional paths, for the OpenAPI document."""

from __future__ import annotations

from pydantic import RootModel

from services.router.apis.anthropic import AnthropicError, AnthropicModel, AnthropicModelList
from services.router.apis.openai.chat_batch import ChatCompletionBatchRequest
from services.router.apis.openai.chat_completions import ChatCompletionRequest
from services.router.apis.openai.completions import CompletionRequest
from services.router.apis.openai.invocations import Invocation, InvocationEvent, InvocationReply
from services.router.apis.openai.replies import (
    ChatCompletion,
    ChatCompletionChunk,
    Completion,
    CompletionChunk,
    DetokenizedPrompt,
    Health,
    ModelCard,
    ModelList,
    Nothing,
    TokenizedPrompt,
    TokenizerInfo,
    Version,
)
from services.router.apis.openai.tokens import DetokenizeRequest, TokenizeRequest
from services.router.http import ErrorReply, Example, Operation

_OPENAI = "OpenAI"
_TOKENS = "Tokens"
_SERVER = "Server"
_MODEL = "quire-chat"
_QUESTION = [{"role": "user", "content": "What is 7 plus 5?"}]


class ListedModels(RootModel[ModelList | AnthropicModelList]):
    pass


class DescribedModel(RootModel[ModelCard | AnthropicModel]):
    pass


class ModelsError(RootModel[ErrorReply | AnthropicError]):
    """Errors of paths that both APIs have."""


OPERATIONS = (
    Operation(
        "POST", "/v1/chat/completions", "createChatCompletion", _OPENAI, "Answers a conversation",
        "OpenAI's chat completions, with vLLM's additional parameters. Unknown fields are ignored.",
        body=ChatCompletionRequest, reply=ChatCompletion, event=ChatCompletionChunk,
        examples=(
            Example("A question", {"model": _MODEL, "messages": _QUESTION, "max_tokens": 16}),
            Example(
                "Streamed, with the usage at its end",
                {
                    "model": _MODEL, "messages": _QUESTION, "max_tokens": 16, "temperature": 0,
                    "stream": True, "stream_options": {"include_usage": True},
                },
            ),
            Example(
                "Two answers, with log probabilities",
                {
                    "model": _MODEL, "messages": _QUESTION, "max_tokens": 4, "seed": 7, "n": 2, "logprobs": True,
                    "top_logprobs": 2,
                },
            ),
        ),
        names_model=True, may_overload=True,
    ),
    Operation(
        "POST", "/v1/chat/completions/batch", "createChatCompletionBatch", _OPENAI, "Answers several conversations",
        "vLLM's batched chat completions: one choice per conversation, in their order, and one usage. `stream`, "
        "`tools` and `n` above 1 are refused.",
        body=ChatCompletionBatchRequest, reply=ChatCompletion,
        examples=(
            Example(
                "Two questions",
                {"model": _MODEL, "messages": [_QUESTION, [{"role": "user", "content": "Hello!"}]], "max_tokens": 8},
            ),
        ),
        names_model=True, may_overload=True,
    ),
    Operation(
        "POST", "/v1/completions", "createCompletion", _OPENAI, "Continues a text",
        "OpenAI's completions, with vLLM's additional parameters. Unknown fields are ignored.",
        body=CompletionRequest, reply=Completion, event=CompletionChunk,
        examples=(
            Example("A text", {"model": _MODEL, "prompt": "One, two,", "max_tokens": 8}),
            Example("Several", {"model": _MODEL, "prompt": ["One, two,", "Hello"], "max_tokens": 4, "logprobs": 1}),
            Example("Token ids, streamed", {"model": _MODEL, "prompt": [5, 6, 7], "max_tokens": 8, "stream": True}),
        ),
        names_model=True, may_overload=True,
    ),
    Operation(
        "GET", "/v1/models", "listModels", _OPENAI, "Lists the models",
        "In OpenAI's format with vLLM's additional fields, or in Anthropic's if the request has the header "
        "`anthropic-version`: then `limit`, `after_id` and `before_id` in the query select a page.",
        reply=ListedModels, error=ModelsError,
    ),
    Operation(
        "GET", "/v1/models/{model}", "retrieveModel", _OPENAI, "Describes a model",
        "In OpenAI's format, or in Anthropic's if the request has the header `anthropic-version`.",
        reply=DescribedModel, error=ModelsError,
        parameters={"model": "The model's name; slashes in it may be escaped or not."},
        examples=(Example("The bundled model", {"model": _MODEL}),), names_model=True,
    ),
    Operation(
        "POST", "/tokenize", "tokenize", _TOKENS, "Turns a text or a conversation into token ids",
        "Give exactly one of `prompt` and `messages`.", body=TokenizeRequest, reply=TokenizedPrompt,
        examples=(
            Example("A text", {"model": _MODEL, "prompt": "Hello, world!", "return_token_strs": True}),
            Example("A conversation, as the model's chat template writes it", {"model": _MODEL, "messages": _QUESTION}),
        ),
        names_model=True, may_overload=True,
    ),
    Operation(
        "POST", "/detokenize", "detokenize", _TOKENS, "Turns token ids into a text", body=DetokenizeRequest,
        reply=DetokenizedPrompt, examples=(Example("Token ids", {"model": _MODEL, "tokens": [5, 6, 7]}),),
        names_model=True, may_overload=True,
    ),
    Operation(
        "GET", "/tokenizer_info", "getTokenizerInfo", _TOKENS, "Describes the tokenizer",
        "The model's tokenizer_config.json and its chat template. `?model=` names one of several models.",
        reply=TokenizerInfo, names_model=True,
    ),
    Operation(
        "POST", "/invocations", "createInvocation", _SERVER, "Answers any kind of request",
        "SageMaker's path. The body decides which path handles it, by the first of these fields that it has: "
        "`messages` (chats), `prompt` (completions), `input` (embeddings, or the classes of a classifier), `query` "
        "(rerank), `text_1` or `queries` (score).",
        body=Invocation, reply=InvocationReply, event=InvocationEvent,
        examples=(
            Example("A question", {"model": _MODEL, "messages": _QUESTION, "max_tokens": 16}),
            Example("A text", {"model": _MODEL, "prompt": "One, two,", "max_tokens": 8, "stream": True}),
        ),
        names_model=True, may_overload=True,
    ),
    Operation(
        "GET", "/ping", "getPing", _SERVER, "Checks whether the server is ready",
        "200 if a scheduler accepts requests, otherwise 503. SageMaker's name of `/health`.", reply=Health,
        needs_key=False,
    ),
    Operation(
        "POST", "/ping", "postPing", _SERVER, "The same as `GET /ping`", "A body is ignored.", reply=Health,
        needs_key=False,
    ),
    Operation(
        "POST", "/reset_prefix_cache", "resetPrefixCache", _SERVER, "Empties the prefix cache",
        "KV blocks of earlier requests are not used again. A body is ignored.", reply=Nothing,
    ),
    Operation(
        "GET", "/health", "getHealth", _SERVER, "Checks whether the server is ready",
        "200 if a scheduler accepts requests, otherwise 503.", reply=Health, needs_key=False,
    ),
    Operation("GET", "/version", "getVersion", _SERVER, "Returns the server's version", reply=Version),
    Operation(
        "GET", "/metrics", "getMetrics", _SERVER, "Returns metrics in Prometheus' text format",
        "Counters of the router that answers, and the load of the schedulers that it is connected to.",
        content_type="text/plain",
        needs_key=False,
    ),
)  # fmt: skip
