"""Answers many prompts at once from Python: `LLM` starts its own stack, sends requests to it, and stops it."""

from __future__ import annotations

import functools
import itertools
import random
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

from quire.cli.progress_bar import progress_bar
from quire.cli.stack import SERVICES, option_names
from quire.cli.vllm_options import OPTIONS
from quire.client.options import TemplateOptions
from quire.offline.background import BACKGROUND
from quire.offline.conversations import parse_conversations, parse_tools
from quire.offline.engine import EmbeddingRequest, Engine, Request
from quire.offline.model_files import default_sampling_params, load_tokenizer
from quire.offline.outputs import EmbeddingRequestOutput, RequestOutput, ScoringRequestOutput, scoring_output
from quire.offline.own_stack import OwnStack, router_stack
from quire.offline.pooling_params import PoolingParams
from quire.offline.prompts import Message, Prompt, PromptLike, parse_prompts, parse_texts
from quire.offline.sampling_params import SamplingParams, checked_copies
from services.worker.config import WorkerConfig
from shared.config import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Options that do nothing without a gateway.
GATEWAY_ONLY = {field.name for field in fields(SERVICES["gateway"])} - {
    field.name for name in SERVICES if name != "gateway" for field in fields(SERVICES[name])
}


class LLM:
    """A model that generates and embeds, on its own router, scheduler and worker. They stop with this object, or at the
    latest when the program ends. If a part dies, it is restarted, and calls still return all of their answers. Any
    thread can use the object, also in programs with an event loop (a notebook). Each call blocks until its answers are
    complete.

    `model` and the options are those of `quire serve`, with underscores: `LLM("./Qwen3-0.6B", max_model_len=4096)`.
    `seed`: a request whose sampling parameters have no seed gets one that is drawn with `seed`, so that a program that
    makes the same calls in the same order gets the same seeds in every run. None: the drawn seeds differ in every run.
    Options of vLLM that Quire does not have are accepted if they change nothing, such as `trust_remote_code=False`.
    Raises ConfigError (a ValueError) for an option that cannot be used, and StackError, with the reason that the part
    reported, if a part cannot start.
    """

    def __init__(
        self,
        model: str = "",
        *,
        seed: int | None = None,
        **options: Any,
    ) -> None:
        flags = _flags(model, options)
        stack = router_stack(flags)
        worker, scheduler = stack.configs["worker"], stack.configs["scheduler"]
        own = OwnStack(flags)
        self._worker_config: WorkerConfig = worker
        self._seeds = None if seed is None else random.Random(seed)
        # With twice --max-num-seqs, one sequence waits in the scheduler's queue for each that runs. The queue must have
        # room for all.
        max_num_seqs = min(2 * worker.max_num_seqs, scheduler.max_num_queued_reqs)

        # A coroutine, because BACKGROUND's event loop must create the engine's gRPC channel: a channel belongs to the
        # event loop that creates it.
        async def connect() -> Engine:
            return Engine(own.address, stack.api_key, max_num_seqs, own.failure)

        try:
            self._engine = BACKGROUND.run(connect())
        except BaseException:
            own.stop()
            raise
        self._request_ids = itertools.count()
        self._stop = weakref.finalize(self, _stop, self._engine, own)

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stops the stack. Calls in progress raise StackError. Idempotent."""
        self._stop()

    def get_tokenizer(self) -> PreTrainedTokenizerBase:
        """Returns the model's tokenizer as loaded by transformers. Every call returns the same object. Raises
        ValueError if transformers cannot load it."""
        return self._tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """Returns a new SamplingParams with the model's own defaults, which calls without `sampling_params` use.
        Raises ValueError if the model's files no longer exist."""
        return default_sampling_params(self._worker_config)

    @functools.cached_property
    def _tokenizer(self) -> PreTrainedTokenizerBase:
        return load_tokenizer(self._worker_config)

    def generate(
        self,
        prompts: PromptLike | Sequence[PromptLike],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Continues each prompt. A prompt is a text, a list of token ids, or a mapping with `prompt` or
        `prompt_token_ids`. `sampling_params`: one object for all prompts, or a list with one object per prompt; None:
        the model's own defaults. `use_tqdm` shows a progress bar. `priority`: one value per prompt; with
        `scheduling_policy="priority"`, lower values run earlier. Returns the outputs in the order of the prompts.
        Raises ValueError and TypeError for an invalid prompt, QuireError for a request that the router refuses, and
        StackError if the stack has failed."""
        return self._answer(parse_prompts(prompts), sampling_params, use_tqdm, priority)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        *,
        chat_template: str | None = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answers one or several conversations, rendered with the model's chat template. Messages and `tools` have
        OpenAI's format. Tool calls and reasoning stay in the text, as the model wrote them. `chat_template`: a Jinja
        template to use instead of the model's own; `chat_template_kwargs`: additional arguments of the template.
        `add_generation_prompt`: whether the template adds the beginning of the assistant's turn; None: the opposite of
        `continue_final_message`. Otherwise like `generate`."""
        template = TemplateOptions(continue_final_message=continue_final_message)
        if add_generation_prompt is not None:
            template["add_generation_prompt"] = add_generation_prompt
        if chat_template is not None:
            template["chat_template"] = chat_template
        if tools:
            template["tools"] = parse_tools(tools)
        if chat_template_kwargs is not None:
            template["chat_template_kwargs"] = chat_template_kwargs
        return self._answer(parse_conversations(messages, template), sampling_params, use_tqdm, None)

    def embed(
        self,
        prompts: PromptLike | Sequence[PromptLike],
        *,
        use_tqdm: bool = True,
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
    ) -> list[EmbeddingRequestOutput]:
        """Returns the embedding of each prompt. Prompts have the same forms as in `generate`. `pooling_params`: one
        object for all prompts, or a list with one object per prompt. Raises the same errors as `generate`."""
        return self._embed(parse_prompts(prompts), pooling_params, use_tqdm)

    def score(
        self,
        data_1: str | Sequence[str],
        data_2: str | Sequence[str],
        *,
        use_tqdm: bool = True,
        pooling_params: PoolingParams | None = None,
    ) -> list[ScoringRequestOutput]:
        """Compares one text with each text of a list, or two lists of equal length pair by pair. Returns for each pair
        the cosine similarity of its two embeddings; cross-encoders are refused. Raises ValueError for lists of other
        lengths, and the same errors as `embed`."""
        first, second = parse_texts(data_1, "data_1"), parse_texts(data_2, "data_2")
        if len(first) not in (1, len(second)):
            raise ValueError(f"data_1 has {len(first)} texts: use one, or {len(second)} as in data_2")
        params = replace(pooling_params or PoolingParams(), normalize=True)
        # No prompt of the model, as at /v1/score.
        vectors = self._embed([*first, *second], params, use_tqdm, input_type="")
        pairs = zip(vectors[: len(first)] * (len(second) if len(first) == 1 else 1), vectors[len(first) :], strict=True)
        return [scoring_output(str(next(self._request_ids)), one, other) for one, other in pairs]

    def _answer(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None,
        is_shown: bool,
        priority: Sequence[int] | None,
    ) -> list[RequestOutput]:
        self._check_open()
        each: Sequence[SamplingParams | None]
        each = [params] * len(prompts) if params is None or isinstance(params, SamplingParams) else params
        priorities = [0] * len(prompts) if priority is None else priority
        _check_one_each({"sampling_params": each, "priority": priorities}, prompts)
        requests = [
            Request(str(next(self._request_ids)), prompt, one, urgency, self._next_seed())
            for prompt, one, urgency in zip(prompts, checked_copies(each), priorities, strict=True)
        ]
        with progress_bar("prompts", len(requests), is_shown=is_shown) as advance:
            return BACKGROUND.run(self._engine.answer(requests, advance))

    def _embed(
        self,
        prompts: Sequence[Prompt],
        params: PoolingParams | Sequence[PoolingParams] | None,
        is_shown: bool,
        input_type: str | None = None,
    ) -> list[EmbeddingRequestOutput]:
        self._check_open()
        params = PoolingParams() if params is None else params
        each = [params] * len(prompts) if isinstance(params, PoolingParams) else params
        _check_one_each({"pooling_params": each}, prompts)
        requests = [
            EmbeddingRequest(str(next(self._request_ids)), prompt, one, input_type)
            for prompt, one in zip(prompts, each, strict=True)
        ]
        with progress_bar("prompts", len(requests), is_shown=is_shown) as advance:
            return BACKGROUND.run(self._engine.embed(requests, advance))

    def _next_seed(self) -> int | None:
        return None if self._seeds is None else self._seeds.getrandbits(64)

    def _check_open(self) -> None:
        if not self._stop.alive:
            raise RuntimeError("this LLM is closed")


def _check_one_each(arguments: Mapping[str, Sequence[object]], prompts: Sequence[Prompt]) -> None:
    for name, given in arguments.items():
        if len(given) != len(prompts):
            raise ValueError(f"{name} has {len(given)} entries for {len(prompts)} prompts")


def _flags(model: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Converts options to values that build_stack accepts and JSON can represent. Leaves out options whose value is
    None. Raises ConfigError."""
    flags: dict[str, Any] = {"model": str(model)} if model else {}
    for name, value in options.items():
        if name not in option_names() and name not in OPTIONS:
            raise ConfigError(f"LLM has no option {name!r}; quire serve --help lists the options")
        if name in GATEWAY_ONLY:
            raise ConfigError(f"{name} is an option of the gateway, which LLM does not start")
        if value is None:
            continue
        if isinstance(value, (list, tuple)):
            flags[name] = [str(item) for item in value]
        else:
            flags[name] = value if isinstance(value, bool) else str(value)
    return flags


def _stop(engine: Engine, own: OwnStack) -> None:
    if own.is_ours:
        BACKGROUND.start(engine.close())
        own.stop()
