"""Many prompts at once, in a few lines of Python: `LLM` starts a stack of its own, asks it, and stops it."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import fields
from types import TracebackType
from typing import Any

from quire.cli.stack import SERVICES, option_names
from quire.offline.background import BACKGROUND
from quire.offline.engine import Engine, Request
from quire.offline.outputs import RequestOutput
from quire.offline.own_stack import OwnStack, router_stack
from quire.offline.progress import progress_bar
from quire.offline.prompts import Message, Prompt, PromptLike, parse_conversations, parse_prompts
from quire.offline.sampling_params import SamplingParams
from shared.config import ConfigError

_GATEWAY_ONLY = {field.name for field in fields(SERVICES["gateway"])} - {
    field.name for name in SERVICES if name != "gateway" for field in fields(SERVICES[name])
}


class LLM:
    """A model, ready to generate, on a router, a scheduler and a worker that end with this object, at the latest with
    the program. A part that dies is started again, and the answers under way go on. Any thread may use it, also of a
    program that has an event loop (a notebook); each call waits for its answers.

    `model` and the options are those of `quire serve`, with underscores: `LLM("./Qwen3-0.6B", max_model_len=4096)`.
    Raises ConfigError (a ValueError) for an option that cannot be used, and StackError, with the part's own reason,
    where a part cannot start.
    """

    def __init__(self, model: str = "", **options: Any) -> None:
        flags = _flags(model, options)
        stack = router_stack(flags)
        own = OwnStack(flags)
        worker, scheduler = stack.configs["worker"], stack.configs["scheduler"]
        # A full step, and as many that wait for their turn.
        max_num_seqs = min(2 * worker.max_num_seqs, scheduler.max_num_queued_reqs)

        async def connect() -> Engine:  # gRPC's channel belongs to the loop that makes it.
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
        """Stops the stack; answers under way end in StackError. Idempotent."""
        self._stop()

    def generate(
        self,
        prompts: PromptLike | Sequence[PromptLike],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Continues each prompt: a text, a list of token ids, or a mapping with `prompt` or `prompt_token_ids`. One
        SamplingParams is for all prompts, several are one for each; without, the model's own defaults count. `use_tqdm`
        shows a progress bar. `priority`: one for each prompt, less is sooner, with `scheduling_policy="priority"`.
        Outputs are in the order of the prompts. Raises ValueError and TypeError for what is no prompt, QuireError for
        what the model cannot take, StackError where the stack is gone for good."""
        return self._answer(parse_prompts(prompts), sampling_params, use_tqdm, priority)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Answers a conversation, or each of several, as the model's chat template renders them. Otherwise as
        `generate`."""
        return self._answer(parse_conversations(messages), sampling_params, use_tqdm, None)

    def _answer(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None,
        is_shown: bool,
        priority: Sequence[int] | None,
    ) -> list[RequestOutput]:
        if not self._stop.alive:
            raise RuntimeError("this LLM is closed")
        each = [params] * len(prompts) if params is None or isinstance(params, SamplingParams) else list(params)
        priorities = [0] * len(prompts) if priority is None else list(priority)
        for name, given in (("sampling_params", each), ("priority", priorities)):
            if len(given) != len(prompts):
                raise ValueError(f"{name} has {len(given)} entries for {len(prompts)} prompts")
        requests = [
            Request(str(next(self._request_ids)), prompt, one, urgency)
            for prompt, one, urgency in zip(prompts, each, priorities, strict=True)
        ]
        with progress_bar("prompts", len(requests), is_shown=is_shown) as advance:
            return BACKGROUND.run(self._engine.answer(requests, advance))


def _flags(model: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """As build_stack takes them, and JSON; None is left out. Raises ConfigError."""
    flags: dict[str, Any] = {"model": str(model)} if model else {}
    for name, value in options.items():
        if name not in option_names():
            raise ConfigError(f"LLM has no option {name!r}; quire serve --help lists them")
        if name in _GATEWAY_ONLY:
            raise ConfigError(f"{name} is the gateway's, and LLM starts none")
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
