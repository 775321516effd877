"""Every metric of every part. docs/metrics.md is made of this module (`python -m deploy.dashboards`).

Metrics that vLLM has, too, have its names, kinds, labels and bucket bounds (its release 0.33, and the names of earlier
releases that dashboards and routers still ask for). LEFT_OUT names those that are not here, and says why. The prefix
quire: marks those that only Quire has.

vLLM gives each series the label `engine`, the index of one of its engines. Here, most series are sums over all workers
of a scheduler. Only those of a single worker have the label.

Labels have few values: names and versions of served models, parts of the fleet, and words from a fixed list. No label
comes from a request.
"""

from __future__ import annotations

from shared.metrics.metric import Metric, Part

_ROUTER = (Part.ROUTER, Part.SERVER)
_SCHEDULER = (Part.SCHEDULER, Part.SERVER)
_PARTS = (Part.ROUTER, Part.SCHEDULER, Part.WORKER)
_ALL_PARTS = (*_PARTS, Part.GATEWAY)
_FOLLOWERS = (Part.ROUTER, Part.SCHEDULER, Part.GATEWAY)  # of discovery

# A model's version is left out where it has none. A router adds its own id to all that it serves as `router`, and the
# scheduler's address to the counters that it repeats.
MODEL = ("model_name", "model_version")

# In addition to vLLM's bounds, there are those that alerts compare with: a quantile between two bounds is an estimate.
FIRST_TOKEN_TARGET_S, PER_TOKEN_TARGET_S = 0.2, 0.03
_FIRST_TOKEN = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, FIRST_TOKEN_TARGET_S, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40,
    80, 160, 640, 2560,
)  # fmt: skip
_PER_TOKEN = (
    0.01, 0.025, PER_TOKEN_TARGET_S, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80,
)  # fmt: skip
_REQUEST = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_DELIVERY = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_LAG = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1, 2.5, 5, 10)
_PAUSE = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
# vLLM ends these at the longest sequence of its model. A router serves models of several lengths.
_TOKENS = tuple(mantissa * 10**exponent for exponent in range(7) for mantissa in (1, 2, 5))[:-2]
_STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)  # as in quire.scheduler.v1.Load

# -- Requests, as their router sees them. A choice is one of a request's `n` outputs.

TIME_TO_FIRST_TOKEN = Metric(
    "vllm:time_to_first_token_seconds", "histogram",
    "Seconds from a request's submission to the first token of each choice.", _ROUTER, MODEL, _FIRST_TOKEN,
)  # fmt: skip
INTER_TOKEN_LATENCY = Metric(
    "vllm:inter_token_latency_seconds", "histogram", "Seconds between tokens of a choice. Tokens that come together "
    "share the time since those before.", _ROUTER, MODEL, _PER_TOKEN,
)  # fmt: skip
TIME_PER_OUTPUT_TOKEN = Metric(
    "vllm:time_per_output_token_seconds", "histogram", "The older name of vllm:inter_token_latency_seconds.",
    _ROUTER, MODEL, _PER_TOKEN,
)  # fmt: skip
REQUEST_TIME_PER_OUTPUT_TOKEN = Metric(
    "vllm:request_time_per_output_token_seconds", "histogram",
    "Mean seconds per token of a choice after its first one.", _ROUTER, MODEL, _PER_TOKEN,
)  # fmt: skip
E2E_REQUEST_LATENCY = Metric(
    "vllm:e2e_request_latency_seconds", "histogram", "Seconds from a request's submission to the end of each choice.",
    _ROUTER, MODEL, _REQUEST,
)  # fmt: skip
REQUEST_QUEUE_TIME = Metric(
    "vllm:request_queue_time_seconds", "histogram", "Seconds from a choice's submission to its first planned step.",
    _ROUTER, MODEL, _REQUEST,
)  # fmt: skip
REQUEST_PREFILL_TIME = Metric(
    "vllm:request_prefill_time_seconds", "histogram", "Seconds from a choice's first planned step to its first token.",
    _ROUTER, MODEL, _REQUEST,
)  # fmt: skip
REQUEST_DECODE_TIME = Metric(
    "vllm:request_decode_time_seconds", "histogram", "Seconds from a choice's first token to its last one.",
    _ROUTER, MODEL, _REQUEST,
)  # fmt: skip
REQUEST_INFERENCE_TIME = Metric(
    "vllm:request_inference_time_seconds", "histogram", "Seconds from a choice's first planned step to its last token.",
    _ROUTER, MODEL, _REQUEST,
)  # fmt: skip
REQUEST_PROMPT_TOKENS = Metric(
    "vllm:request_prompt_tokens", "histogram", "Prompt tokens of a choice that ended.", _ROUTER, MODEL, _TOKENS
)
REQUEST_GENERATION_TOKENS = Metric(
    "vllm:request_generation_tokens", "histogram", "Generated tokens of a choice that ended.", _ROUTER, MODEL, _TOKENS
)
REQUEST_MAX_NUM_GENERATION_TOKENS = Metric(
    "vllm:request_max_num_generation_tokens", "histogram", "Generated tokens of a request's longest choice.",
    _ROUTER, MODEL, _TOKENS,
)  # fmt: skip
REQUEST_PREFILL_KV_COMPUTED_TOKENS = Metric(
    "vllm:request_prefill_kv_computed_tokens", "histogram", "Prompt tokens of a choice that were computed, because no "
    "cache had them.", _ROUTER, MODEL, _TOKENS,
)  # fmt: skip
REQUEST_PARAMS_N = Metric(
    "vllm:request_params_n", "histogram", "The parameter n of a request.", _ROUTER, MODEL, (1, 2, 5, 10, 20)
)
REQUEST_PARAMS_MAX_TOKENS = Metric(
    "vllm:request_params_max_tokens", "histogram", "Most tokens that a choice might have generated.",
    _ROUTER, MODEL, _TOKENS,
)  # fmt: skip
REQUEST_NUM_PREEMPTIONS = Metric(
    "vllm:request_num_preemptions", "histogram", "How often a choice was preempted.",
    _ROUTER, MODEL, (1, 2, 3, 4, 5, 10, 20),
)  # fmt: skip
PROMPT_TOKENS = Metric(
    "vllm:prompt_tokens", "counter", "Prompt tokens of choices that got their first token.", _ROUTER, MODEL
)
PROMPT_TOKENS_CACHED = Metric(
    "vllm:prompt_tokens_cached", "counter", "Prompt tokens of ended choices that a cache had.", _ROUTER, MODEL
)
PROMPT_TOKENS_BY_SOURCE = Metric(
    "vllm:prompt_tokens_by_source", "counter", "Prompt tokens of ended choices, by where their keys and values came "
    "from: local_compute, local_cache_hit (the KV cache) or external_kv_transfer (the host's memory).",
    _ROUTER, (*MODEL, "source"),
)  # fmt: skip
PROMPT_TOKENS_CACHED_BY_SOURCE = Metric(
    "vllm:prompt_tokens_cached_by_source", "counter", "The cached ones among vllm:prompt_tokens_by_source.",
    _ROUTER, (*MODEL, "source"),
)  # fmt: skip
GENERATION_TOKENS = Metric("vllm:generation_tokens", "counter", "Tokens generated.", _ROUTER, MODEL)
REQUEST_SUCCESS = Metric(
    "vllm:request_success", "counter", "Choices that ended, by reason: stop, length, abort (the client left or its "
    "time ran out) or error (the server's fault). Refused requests count in vllm:admission_rejections.",
    _ROUTER, (*MODEL, "finished_reason"),
)  # fmt: skip
ADMISSION_REJECTIONS = Metric(
    "vllm:admission_rejections", "counter", "Requests refused because too much was waiting: at a scheduler "
    "(max_num_queued_reqs) or at the router (max_num_requests).", _ROUTER, (*MODEL, "reason"),
)  # fmt: skip

# -- Batches and caches. Schedulers serve them; the gateway repeats their last reports.

NUM_REQUESTS_RUNNING = Metric(
    "vllm:num_requests_running", "gauge", "Sequences in the running batch.", _SCHEDULER, MODEL
)
NUM_REQUESTS_WAITING = Metric(
    "vllm:num_requests_waiting", "gauge", "Sequences that wait for their turn.", _SCHEDULER, MODEL
)
NUM_REQUESTS_WAITING_BY_REASON = Metric(
    "vllm:num_requests_waiting_by_reason", "gauge", "Sequences that wait, by reason: capacity (steps, slots or blocks) "
    "or deferred (a grammar is prepared, or another sequence computes the same prefix).",
    _SCHEDULER, (*MODEL, "reason"),
)  # fmt: skip
KV_CACHE_USAGE = Metric(
    "vllm:kv_cache_usage_perc", "gauge", "Part of the KV cache's blocks that is in use, 0 to 1.", _SCHEDULER, MODEL
)
GPU_CACHE_USAGE = Metric(
    "vllm:gpu_cache_usage_perc", "gauge", "The older name of vllm:kv_cache_usage_perc.", _SCHEDULER, MODEL
)
CPU_CACHE_USAGE = Metric(
    "vllm:cpu_cache_usage_perc", "gauge", "Part of the swap space that is in use, 0 to 1.", _SCHEDULER, MODEL
)
PROMPT_THROUGHPUT = Metric(
    "vllm:avg_prompt_throughput_toks_per_s", "gauge", "Prompt tokens per second, over the last 10 s.", _SCHEDULER, MODEL
)
GENERATION_THROUGHPUT = Metric(
    "vllm:avg_generation_throughput_toks_per_s", "gauge", "Generated tokens per second, over the last 10 s.",
    _SCHEDULER, MODEL,
)  # fmt: skip
NUM_PREEMPTIONS = Metric(
    "vllm:num_preemptions", "counter", "Preemptions: sequences that gave their blocks up and wait.", _SCHEDULER, MODEL
)
PREFIX_CACHE_QUERIES = Metric(
    "vllm:prefix_cache_queries", "counter", "Tokens looked up in the KV cache.", _SCHEDULER, MODEL
)
PREFIX_CACHE_HITS = Metric(
    "vllm:prefix_cache_hits", "counter", "Tokens found in the KV cache on the device.", _SCHEDULER, MODEL
)
GPU_PREFIX_CACHE_QUERIES = Metric(
    "vllm:gpu_prefix_cache_queries", "counter", "The older name of vllm:prefix_cache_queries.", _SCHEDULER, MODEL
)
GPU_PREFIX_CACHE_HITS = Metric(
    "vllm:gpu_prefix_cache_hits", "counter", "The older name of vllm:prefix_cache_hits.", _SCHEDULER, MODEL
)
EXTERNAL_PREFIX_CACHE_QUERIES = Metric(
    "vllm:external_prefix_cache_queries", "counter", "Tokens looked up in the host's memory, because the device did "
    "not have them.", _SCHEDULER, MODEL,
)  # fmt: skip
EXTERNAL_PREFIX_CACHE_HITS = Metric(
    "vllm:external_prefix_cache_hits", "counter", "Tokens found in the host's memory.", _SCHEDULER, MODEL
)
ITERATION_TOKENS = Metric(
    "vllm:iteration_tokens_total", "histogram", "Tokens that a step computes. engine: number of the worker among "
    "those of its scheduler, on schedulers only.", _SCHEDULER, MODEL, _STEP_TOKENS,
)  # fmt: skip
ENGINE_SLEEP_STATE = Metric(
    "vllm:engine_sleep_state", "gauge", "1 for sleep_state=\"awake\" while a worker is ready, else 0. Workers of Quire "
    "do not sleep.", _SCHEDULER, (*MODEL, "sleep_state"),
)  # fmt: skip
CACHE_CONFIG_INFO = Metric(
    "vllm:cache_config_info", "gauge", "1; the labels are the size of the KV cache. At the server, of all workers of "
    "the model together. engine: as for vllm:iteration_tokens.", _SCHEDULER,
    (*MODEL, "block_size", "num_gpu_blocks", "num_cpu_blocks", "enable_prefix_caching"),
)  # fmt: skip

# -- Recovery and health of routers

DELIVERY = Metric(
    "quire:delivery_seconds", "histogram", "Seconds from the arrival of tokens in the router until the client's "
    "transport has taken them.", _ROUTER, MODEL, _DELIVERY,
)  # fmt: skip
EVENT_LOOP_LAG = Metric(
    "quire:event_loop_lag_seconds", "histogram", "Seconds that timers of the router are late.", _ROUTER, (), _LAG
)
SCHEDULERS_READY = Metric(
    "quire:schedulers_ready", "gauge", "Schedulers with a worker that the router can use, by model. 0: schedulers are "
    "connected, but none has a worker, or all are stopping. Models without any scheduler have no series.",
    _ROUTER, MODEL,
)  # fmt: skip
SCHEDULERS_STALE = Metric(
    "quire:schedulers_stale", "gauge", "Schedulers that the router uses although discovery does not know them any "
    "more.", _ROUTER,
)  # fmt: skip
MODEL_NAME_CONFLICTS = Metric(
    "quire:model_name_conflicts", "gauge", "Names and aliases that more than one served model claims.", _ROUTER
)
SEQUENCES_PARKED = Metric(
    "quire:sequences_parked", "gauge", "Sequences that wait for a scheduler, or for the proof of an exit.", _ROUTER
)
RESUBMISSIONS = Metric(
    "quire:resubmissions", "counter", "Sequences that were sent again, to another scheduler or over a new connection.",
    _ROUTER,
)  # fmt: skip
STREAMS_RECOVERED = Metric(
    "quire:streams_recovered", "counter",
    "Choices that ended as asked although a part that worked on them was lost or silent.",
    _ROUTER, MODEL,
)  # fmt: skip
STREAMS_LOST = Metric(
    "quire:streams_lost", "counter", "Choices that failed after a part that worked on them was lost or silent.",
    _ROUTER, MODEL,
)  # fmt: skip
RECOVERY_PAUSE = Metric(
    "quire:recovery_pause_seconds", "histogram", "Seconds between the tokens before and after the loss or silence of "
    "a part, as clients wait for them.", _ROUTER, MODEL, _PAUSE,
)  # fmt: skip
SLOW_CLIENT_PAUSES = Metric(
    "quire:slow_client_pauses", "counter", "Sequences that were paused because their clients did not read.", _ROUTER
)
OUTBOX_MESSAGES = Metric(
    "quire:outbox_messages", "gauge", "Messages that wait to be sent: to=\"scheduler\" at a router, to=\"worker\" at a "
    "scheduler.", (Part.ROUTER, Part.SERVER, Part.SCHEDULER), ("to",),
)  # fmt: skip
REQUEST_ERRORS = Metric(
    "quire:request_errors", "counter", "Requests answered with an error, by gRPC status.", _ROUTER, ("status",)
)
IGNORED_FIELDS = Metric(
    "quire:ignored_fields", "counter", "Unknown fields of requests that were ignored.", _ROUTER, ("method",)
)

# -- Health of schedulers

STEP_LOOP_STALL = Metric(
    "quire:step_loop_stall_seconds", "gauge", "Seconds since the last sign of life of a worker with a step in flight; "
    "0 without one.", (Part.SCHEDULER,), ("engine",),
)  # fmt: skip
MAX_NUM_SEQS = Metric(
    "quire:max_num_seqs", "gauge", "Most sequences that a worker runs at once.", (Part.SCHEDULER,), ("engine",)
)
WORKERS_READY = Metric("quire:workers_ready", "gauge", "Workers that the scheduler can use.", (Part.SCHEDULER,))
WORKERS_LOST = Metric("quire:workers_lost", "counter", "Workers that the scheduler lost.", (Part.SCHEDULER,))

# -- Workers

WORKER_STEPS = Metric("quire:worker_steps", "counter", "Steps run.", (Part.WORKER,))
WORKER_STEP_SECONDS = Metric("quire:worker_step_seconds", "counter", "Seconds in steps.", (Part.WORKER,))
WORKER_DEVICE_SECONDS = Metric(
    "quire:worker_device_seconds", "counter", "Seconds by the GPU's own clock. busy: from a step's first kernel to its "
    "results, gaps included; idle: between steps.", (Part.WORKER,), ("state",),
)  # fmt: skip
WORKER_TOKENS = Metric(
    "quire:worker_tokens", "counter", "Tokens that steps computed (scheduled) and drew (sampled).",
    (Part.WORKER,), ("kind",),
)  # fmt: skip
WORKER_SEQUENCE_ERRORS = Metric("quire:worker_sequence_errors", "counter", "Sequences that failed.", (Part.WORKER,))
WORKER_START_SECONDS = Metric(
    "quire:worker_start_seconds", "gauge", "Seconds of the worker's start by phase: start (imports), find, download, "
    "load (weights), measure_memory, warm_up (kernels), record (CUDA graphs), measure (steps).",
    (Part.WORKER,), ("phase",),
)  # fmt: skip
WORKER_READY = Metric(
    "quire:worker_ready", "gauge", "1 while the worker has its model and its steps end in time, and 0 otherwise.",
    (Part.WORKER,),
)  # fmt: skip
WORKER_SEQUENCES = Metric("quire:worker_sequences", "gauge", "Sequences that hold a slot.", (Part.WORKER,))
GPU_UTILIZATION = Metric(
    "quire:gpu_utilization_ratio", "gauge", "Part of the last second or less in which the GPU ran kernels, 0 to 1. "
    "Only with a GPU.", (Part.WORKER,), (*MODEL, "gpu"),
)  # fmt: skip
GPU_MEMORY_USED = Metric(
    "quire:gpu_memory_used_bytes", "gauge", "Memory of the GPU in use, by all processes. Only with a GPU.",
    (Part.WORKER,), (*MODEL, "gpu"),
)  # fmt: skip
GPU_MEMORY_TOTAL = Metric(
    "quire:gpu_memory_total_bytes", "gauge", "Memory of the GPU. Only with a GPU.", (Part.WORKER,), (*MODEL, "gpu")
)
GPU_POWER = Metric(
    "quire:gpu_power_watts", "gauge", "Power that the GPU draws. Only with a GPU.", (Part.WORKER,), (*MODEL, "gpu")
)

# -- Every part

HOST_MEMORY_AVAILABLE = Metric(
    "quire:host_memory_available_bytes", "gauge", "Memory that this host, or this container, has left.", _ALL_PARTS
)
DISCOVERY_PARTS = Metric(
    "quire:discovery_parts", "gauge", "Parts that discovery knows. stale: the source does not answer, or not for long "
    "enough yet, so they may be gone; fresh: all others.", _FOLLOWERS, ("kind", "state"),
)  # fmt: skip
DISCOVERY_SILENCE = Metric(
    "quire:discovery_silence_seconds", "gauge", "Seconds since the last answer of the source (DNS, Redis) that has "
    "been silent the longest.", _FOLLOWERS, ("kind",),
)  # fmt: skip
DISCOVERY_REGISTERED = Metric(
    "quire:discovery_registered", "gauge", "1 while the part's lease in Redis runs, else 0.", _PARTS, ("kind",)
)
LEASE_AGE = Metric(
    "quire:lease_age_seconds", "gauge", "Seconds since Redis last took the part's heartbeat.", _PARTS, ("kind",)
)

ALL: tuple[Metric, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Metric))

_WITH_A_FLAG = "vLLM has it with a flag only. vllm:prefix_cache_hits shows how well the cache works."
# What vLLM has and Quire does not, by the name that Prometheus shows, and why.
LEFT_OUT = {
    "vllm:corrupted_requests_total": "A sequence whose logits are not numbers fails by itself: "
    "quire:worker_sequence_errors_total.",
    "vllm:watermark_requests_total": "The scheduler keeps no blocks back below a watermark.",
    "vllm:num_requests_kv_fetch_by_stage": "Keys and values come from no other host.",
    "vllm:mm_cache_queries_total": "Requests have text alone.",
    "vllm:mm_cache_hits_total": "Requests have text alone.",
    "vllm:kv_block_lifetime_seconds": _WITH_A_FLAG,
    "vllm:kv_block_idle_before_evict_seconds": _WITH_A_FLAG,
    "vllm:kv_block_reuse_gap_seconds": _WITH_A_FLAG,
    "vllm:lora_requests_info": "There are no adapters.",
    "vllm:spec_decode_num_drafts_total": "There is no speculative decoding.",
    "vllm:spec_decode_num_draft_tokens_total": "There is no speculative decoding.",
    "vllm:spec_decode_num_accepted_tokens_total": "There is no speculative decoding.",
    "vllm:num_requests_swapped": "A name of older releases. A preempted sequence waits, whether or not the host's "
    "memory has its blocks.",
}
