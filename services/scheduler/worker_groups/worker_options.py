"""What the scheduler's options make of a worker: whether it can be used, and how its core is configured."""

from __future__ import annotations

from services.scheduler.config import SchedulerConfig
from services.scheduler.converters import WorkerHello
from services.scheduler.core import CoreConfig, PreemptionMode, Scheduler, pairs
from services.scheduler.sessions import RoutedRequest


def options_problem(hello: WorkerHello, config: SchedulerConfig) -> str | None:
    """Returns a sentence that says why the worker cannot do what the scheduler's options ask for; None if the worker
    can.
    """
    if hello.model.is_encoder:
        return None  # An encoder has no KV cache to swap, and computes every input in one step.
    if config.preemption_mode == PreemptionMode.SWAP.value and not hello.num_host_blocks:
        return "--preemption-mode is swap, but the worker has no swap space; set --swap-space, or use auto"
    longest, step = hello.model.max_model_len, config.max_num_batched_tokens or hello.max_num_batched_tokens
    if not config.enable_chunked_prefill and longest > min(step, hello.max_num_batched_tokens):
        return (
            f"--no-enable-chunked-prefill computes each prompt in one step, but a sequence can have {longest} tokens "
            f"and a step at most {step}; raise --max-num-batched-tokens or lower --max-model-len"
        )
    return None


def core_config(hello: WorkerHello, config: SchedulerConfig) -> CoreConfig:
    """Returns the core's configuration: the capacities in the worker's hello, limited by the scheduler's options."""
    max_num_seqs = min(config.max_num_seqs or hello.max_num_seqs, hello.max_num_seqs)
    max_num_batched_tokens = min(
        config.max_num_batched_tokens or hello.max_num_batched_tokens, hello.max_num_batched_tokens
    )
    chunked_prefill = config.enable_chunked_prefill and not hello.model.is_encoder
    return CoreConfig(
        num_blocks=hello.num_blocks,
        block_size=hello.block_size,
        max_num_seqs=min(max_num_seqs, max_num_batched_tokens),
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=hello.model.max_model_len,
        max_num_queued_reqs=config.max_num_queued_reqs,
        target_tbt_s=target_tbt_s(config) if chunked_prefill else None,
        num_host_blocks=hello.num_host_blocks,
        preemption_mode=PreemptionMode(config.preemption_mode),
        seconds_per_swapped_block=hello.swap_seconds_per_block,
        enable_prefix_caching=config.enable_prefix_caching,
        fair_queueing=config.fair_queueing,
        chunked_prefill=chunked_prefill,
    )


def target_tbt_s(config: SchedulerConfig) -> float | None:
    """Returns the target time between tokens, in seconds. Returns None if there is no target, or if the target has no
    effect because --max-num-batched-tokens is set or prompts are not chunked.
    """
    if config.max_num_batched_tokens is not None or not config.target_tbt_ms or not config.enable_chunked_prefill:
        return None
    return config.target_tbt_ms / 1000


def seed_step_times(core: Scheduler[RoutedRequest], hello: WorkerHello) -> None:
    """Starts the core's estimate of step times with the measurements in the worker's hello."""
    if hello.step_seconds:
        for num_tokens in (1, 128, 1, 128):
            seconds = hello.step_seconds + (num_tokens - 1) * hello.step_seconds_per_token
            core.step_times.observe(num_tokens, pairs(0, num_tokens), seconds)
