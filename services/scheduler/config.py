"""The scheduler's options."""

from __future__ import annotations

from dataclasses import dataclass

from shared.config import ConfigError, option
from shared.presets import PresetOptions


@dataclass(frozen=True, slots=True)
class SchedulerConfig(PresetOptions):
    listen: tuple[str, ...] = option(
        ("127.0.0.1:50052",), "Address to serve gRPC on, host:port or unix:/path. Repeatable."
    )
    worker: tuple[str, ...] = option(
        (),
        "Address of a worker group's rank 0. Repeatable. A host name stands for all of its addresses. With --redis, "
        "workers are also found there. All groups must serve the same model.",
    )
    worker_model: str = option(
        "",
        "Model that the scheduler's workers must serve: NAME for workers without --model-version, NAME@VERSION for "
        "others. Other workers are not claimed. If left out, the model of the first worker.",
    )
    model_weight: int = option(
        100,
        "Weight of the model's version (--model-version): routers divide new conversations between the versions of one "
        "name in proportion to their weights. 0: only requests that name the version.",
        minimum=0,
        maximum=1_000_000,
    )
    max_num_seqs: int | None = option(
        None, "Maximum number of sequences in one step. Default: the worker's limit.", minimum=1
    )
    max_num_batched_tokens: int | None = option(
        None,
        "Maximum number of tokens in one step; longer prompts are computed in chunks. Overrides --target-tbt-ms. "
        "Default: the worker's limit.",
        minimum=1,
    )
    max_num_queued_reqs: int = option(
        1024,
        "Maximum number of waiting sequences, beyond the free places in the batch. Further requests fail with "
        "RESOURCE_EXHAUSTED; a request with more sequences than batch and queue can ever hold fails with "
        "INVALID_ARGUMENT. The first sequence of a request can exceed the limit by a sixteenth.",
        minimum=1,
    )
    target_tbt_ms: float = option(
        50.0,
        "Target time between tokens in milliseconds: chunks of prompts are kept so small that running streams "
        "stay within it. 0: no target.",
        minimum=0,
    )
    run_ahead: int | None = option(
        None,
        "Plans in flight per worker group. Default: as many as hide the round trip behind the forward pass.",
        minimum=1,
        maximum=8,
    )
    worker_timeout: float = option(
        60.0,
        "Seconds that sequences wait for a lost worker group to come back before they fail, if no other "
        "worker group serves the model.",
        minimum=0,
    )
    step_timeout: float = option(
        2.0,
        "Minimum number of seconds without an answer after which a worker counts as hung, and its sequences move to "
        "other workers. The limit is five times the expected duration of the steps in flight if that is longer, and "
        "at least 5 s for the first step of its kind, or 30 s if the worker ran none at its start.",
        minimum=1,
    )
    enable_chunked_prefill: bool = option(
        True,
        "Chunked prefill: compute long prompts in chunks, in the same steps as decodes. If off, each prompt "
        "is computed in one step, so a step must hold the longest prompt, and --target-tbt-ms has no effect.",
    )
    enable_prefix_caching: bool = option(True, "Prefix caching: prompts with a common prefix share its KV blocks.")
    scheduling_policy: str = option(
        "fcfs",
        "Order of requests. fcfs: by arrival, though short requests may pass much larger ones; priority: by "
        "the priority of the request, then as fcfs.",
        choices=("fcfs", "priority"),
    )
    fair_queueing: bool = option(
        False, "Serve the tenant first that has received the fewest tokens; priority and arrival decide after that."
    )
    preemption_mode: str = option(
        "auto",
        "How a preempted sequence continues. recompute: compute its KV blocks again; swap: copy them back "
        "from --swap-space; auto: whichever is faster.",
        choices=("auto", "recompute", "swap"),
    )
    num_scheduler_steps: int = option(
        1, "Steps per plan; only 1 is supported. Use --run-ahead to have more plans in flight."
    )
    metrics_port: int | None = option(
        None, "TCP port for Prometheus metrics; 0 picks a free one. If left out, off.", minimum=0
    )
    metrics_host: str = option("127.0.0.1", "Host to serve Prometheus metrics on.")
    drain_timeout: float = option(10.0, "Seconds that requests in progress get to finish after SIGTERM.", minimum=0)
    status_fd: int | None = option(None, "File descriptor for start-up status lines in JSON; set by quire serve.")
    log_level: str = option("info", "Lowest severity to log.", choices=("debug", "info", "warning", "error"))
    log_format: str = option("text", "Format of log lines.", choices=("text", "json"))

    def __post_init__(self) -> None:
        PresetOptions.__post_init__(self)
        name, at, version = self.worker_model.partition("@")
        if (at and not (name and version)) or "@" in version:
            raise ConfigError(f"--worker-model is {self.worker_model!r}: use NAME or NAME@VERSION, with one @ at most")
        if self.num_scheduler_steps != 1:
            raise ConfigError(
                f"--num-scheduler-steps is {self.num_scheduler_steps}: use 1; instead of planning several steps at "
                "once, the scheduler keeps several plans in flight (--run-ahead)"
            )
