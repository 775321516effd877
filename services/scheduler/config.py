"""The scheduler's options."""

from __future__ import annotations

from dataclasses import dataclass

from shared.config import ConfigError, option


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    listen: tuple[str, ...] = option(
        ("127.0.0.1:50052",), "Address to serve gRPC on: host:port or unix:/path. Repeatable."
    )
    worker: tuple[str, ...] = option((), "Address of a worker group's rank 0. Repeatable; all must serve one model.")
    max_num_seqs: int | None = option(
        None, "Sequences in one step, at most. Default: what the worker offers.", minimum=1
    )
    max_num_batched_tokens: int | None = option(
        None,
        "Tokens in one step, at most: longer prompts are computed in chunks. Given, --target-tbt-ms does not count. "
        "Default: what the worker offers.",
        minimum=1,
    )
    max_num_queued_reqs: int = option(
        1024,
        "Sequences that may wait, beside those that the batch has free places for; more are refused with "
        "RESOURCE_EXHAUSTED, and with INVALID_ARGUMENT where one request's answers never fit. For the first sequence "
        "of a request there is a sixteenth more room.",
        minimum=1,
    )
    target_tbt_ms: float = option(
        50.0, "Milliseconds between tokens that prompts leave to sequences that decode; 0 for no such limit.", minimum=0
    )
    run_ahead: int | None = option(
        None,
        "Plans in flight per worker group. Default: as many as hide the round trip behind the forward pass.",
        minimum=1,
        maximum=8,
    )
    worker_timeout: float = option(
        60.0,
        "Seconds that sequences wait for a lost worker group to come back before they fail, if no scheduler of the "
        "model has another group.",
        minimum=0,
    )
    step_timeout: float = option(120.0, "Seconds after which a worker that answers no plan is given up.", minimum=1)
    enable_chunked_prefill: bool = option(
        True,
        "Compute prompts in chunks beside decodes. Without it, each prompt is computed in one step: a step must hold "
        "the longest, and --target-tbt-ms does not count.",
    )
    enable_prefix_caching: bool = option(True, "Share the KV of prompts that begin alike.")
    scheduling_policy: str = option(
        "fcfs",
        "The order of requests: as they came, short ones before much larger ones; or by their priority first.",
        choices=("fcfs", "priority"),
    )
    fair_queueing: bool = option(
        False, "Give turns to the tenants that have had the fewest tokens, before priority and arrival."
    )
    preemption_mode: str = option(
        "auto",
        "How a sequence that gave way goes on: from its tokens, from what was copied to --swap-space, or whichever is "
        "faster.",
        choices=("auto", "recompute", "swap"),
    )
    num_scheduler_steps: int = option(1, "Steps per plan: 1. --run-ahead has more plans in flight instead.")
    metrics_port: int | None = option(None, "Port for Prometheus metrics over HTTP; 0 picks one.", minimum=0)
    metrics_host: str = option("127.0.0.1", "Host to serve Prometheus metrics on.")
    drain_timeout: float = option(10.0, "Seconds that work under way gets to finish after SIGTERM.", minimum=0)
    status_fd: int | None = option(None, "File descriptor for start-up status lines in JSON.")
    log_level: str = option("info", "Least severe messages to log.", choices=("debug", "info", "warning", "error"))
    log_format: str = option("text", "How log lines look.", choices=("text", "json"))

    def __post_init__(self) -> None:
        if self.num_scheduler_steps != 1:
            raise ConfigError(
                f"--num-scheduler-steps is {self.num_scheduler_steps}: use 1; instead of planning several steps at "
                "once, the scheduler keeps several plans in flight (--run-ahead)"
            )
