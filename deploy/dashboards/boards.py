"""What the dashboards show."""

from __future__ import annotations

from deploy.dashboards.panels import QUANTILES, Dashboard, Panel, Query, Row
from deploy.dashboards.queries import (
    ALL_PARTS,
    WINDOW,
    mean,
    of_all_parts,
    per_second,
    quantile,
    series,
    share_within,
    total,
)
from shared.metrics import Metric, catalog

# Objective of a tile. It is a bound of the buckets. The other tiles have the targets of the catalog, as alerts have.
REQUEST_S = 10.0

_GATEWAY = 'envoy_http_conn_manager_prefix="gateway"'
_ERRORS = per_second(catalog.REQUEST_SUCCESS, finished_reason="error")


def _quantiles(title: str, metric: Metric, unit: str = "s") -> Panel:
    queries = tuple(Query(quantile(share, metric), f"p{share * 100:g}") for share in QUANTILES)
    return Panel(title, unit, queries, metric.help)


def _tile(title: str, expression: str, description: str, goal: tuple[float, float] = (0.99, 0.95)) -> Panel:
    return Panel(title, "percentunit", (Query(expression),), description, is_tile=True, goal=goal)


OVERVIEW = Dashboard(
    "quire",
    "Quire: overview",
    "Traffic, latencies and errors as clients see them, and what waits.",
    (
        Row(
            "Objectives",
            (
                _tile(
                    "Choices that ended as asked",
                    f"1 - {_ERRORS} / {per_second(catalog.REQUEST_SUCCESS)}",
                    "All but those that failed.",
                    (0.995, 0.99),
                ),
                _tile(
                    f"First token within {catalog.FIRST_TOKEN_TARGET_S:g} s",
                    share_within(catalog.TIME_TO_FIRST_TOKEN, catalog.FIRST_TOKEN_TARGET_S),
                    "Share of the requests.",
                ),
                _tile(
                    f"Next token within {catalog.PER_TOKEN_TARGET_S * 1000:g} ms",
                    share_within(catalog.INTER_TOKEN_LATENCY, catalog.PER_TOKEN_TARGET_S),
                    "Share of the tokens.",
                ),
                _tile(
                    f"Whole answer within {REQUEST_S:g} s",
                    share_within(catalog.E2E_REQUEST_LATENCY, REQUEST_S),
                    "Share of the requests.",
                ),
            ),
        ),
        Row(
            "Traffic",
            (
                Panel(
                    "Requests at the gateway",
                    "reqps",
                    (
                        Query(
                            "sum by (envoy_response_code_class) "
                            f"(rate(envoy_http_downstream_rq_xx{{{_GATEWAY}}}[{WINDOW}]))",
                            "{{envoy_response_code_class}}xx",
                        ),
                        Query(f"sum(envoy_http_downstream_rq_active{{{_GATEWAY}}})", "in progress"),
                    ),
                ),
                Panel(
                    "Tokens",
                    "short",
                    (
                        Query(per_second(catalog.PROMPT_TOKENS), "prompt tokens per second"),
                        Query(per_second(catalog.GENERATION_TOKENS), "generated tokens per second"),
                    ),
                ),
                Panel(
                    "Sequences",
                    "short",
                    (
                        Query(total(catalog.NUM_REQUESTS_RUNNING), "running"),
                        Query(total(catalog.NUM_REQUESTS_WAITING), "waiting"),
                    ),
                ),
            ),
        ),
        Row(
            "Latencies",
            (
                _quantiles("Time to first token", catalog.TIME_TO_FIRST_TOKEN),
                _quantiles("Time between tokens", catalog.INTER_TOKEN_LATENCY),
                _quantiles("Whole request", catalog.E2E_REQUEST_LATENCY),
                _quantiles("In the queue", catalog.REQUEST_QUEUE_TIME),
                _quantiles("Prefill", catalog.REQUEST_PREFILL_TIME),
                _quantiles("Decode", catalog.REQUEST_DECODE_TIME),
            ),
        ),
        Row(
            "Ends and errors",
            (
                Panel(
                    "Ends",
                    "ops",
                    (Query(per_second(catalog.REQUEST_SUCCESS, ("finished_reason",)), "{{finished_reason}}"),),
                    catalog.REQUEST_SUCCESS.help,
                ),
                Panel(
                    "Errors",
                    "ops",
                    (Query(per_second(catalog.REQUEST_ERRORS, ("status",)), "{{status}}"),),
                    catalog.REQUEST_ERRORS.help,
                    needs="requests that were refused or failed",
                ),
                Panel(
                    "Refused for want of room",
                    "ops",
                    (Query(per_second(catalog.ADMISSION_REJECTIONS, ("reason",)), "{{reason}}"),),
                    catalog.ADMISSION_REJECTIONS.help,
                ),
            ),
        ),
        Row(
            "By model",
            (
                Panel(
                    "Generated tokens per second",
                    "short",
                    (Query(per_second(catalog.GENERATION_TOKENS, ("model_name", "model_version"))),),
                ),
                Panel(
                    "Time to first token, p99",
                    "s",
                    (Query(quantile(0.99, catalog.TIME_TO_FIRST_TOKEN, ("model_name", "model_version"))),),
                ),
                Panel(
                    "Mean lengths",
                    "short",
                    (
                        Query(mean(catalog.REQUEST_PROMPT_TOKENS, ("model_name",)), "prompts of {{model_name}}"),
                        Query(mean(catalog.REQUEST_GENERATION_TOKENS, ("model_name",)), "outputs of {{model_name}}"),
                    ),
                ),
            ),
        ),
    ),
)

PARTS = Dashboard(
    "quire-parts",
    "Quire: parts",
    "Routers, schedulers, workers and their processes.",
    (
        Row(
            "Routers",
            (
                Panel(
                    "Healthy routers",
                    "short",
                    (
                        Query('envoy_cluster_membership_healthy{envoy_cluster_name="routers"}', "healthy"),
                        Query('envoy_cluster_membership_total{envoy_cluster_name="routers"}', "all"),
                    ),
                    "As the gateway sees them.",
                ),
                Panel(
                    "Schedulers that a router can use", "short",
                    (Query(series(catalog.SCHEDULERS_READY), "{{router}}: {{model_name}}"),),
                ),
                _quantiles("Event loop lag", catalog.EVENT_LOOP_LAG),
                _quantiles("Delivery to clients", catalog.DELIVERY),
                Panel(
                    "Messages that wait to be sent",
                    "short",
                    (
                        Query(series(catalog.OUTBOX_MESSAGES), "{{instance}}"),
                        Query(series(catalog.OUTBOX_MESSAGES, at="scheduler"), "{{instance}}"),
                    ),
                ),
                Panel("Clients that do not read", "ops", (Query(per_second(catalog.SLOW_CLIENT_PAUSES), "pauses"),)),
            ),
        ),
        Row(
            "Schedulers and workers",
            (
                Panel("Workers that a scheduler can use", "short", (Query(series(catalog.WORKERS_READY)),)),
                Panel(
                    "Silence of workers with a step in flight",
                    "s",
                    (Query(series(catalog.STEP_LOOP_STALL), "{{instance}}, worker {{engine}}"),),
                ),
                _quantiles("Tokens per step", catalog.ITERATION_TOKENS, "short"),
                Panel(
                    "Mean step",
                    "s",
                    (
                        Query(
                            f"{per_second(catalog.WORKER_STEP_SECONDS, ('instance',))} / "
                            f"{per_second(catalog.WORKER_STEPS, ('instance',))}"
                        ),
                    ),
                ),
                Panel(
                    "Tokens of workers",
                    "short",
                    (Query(per_second(catalog.WORKER_TOKENS, ("kind",)), "{{kind}} per second"),),
                ),
                Panel(
                    "Start of workers, by phase",
                    "s",
                    (Query(series(catalog.WORKER_START_SECONDS), "{{instance}} {{phase}}"),),
                ),
                Panel(
                    "Sequences that failed in a worker",
                    "ops",
                    (Query(per_second(catalog.WORKER_SEQUENCE_ERRORS), "errors"),),
                ),
            ),
        ),
        Row(
            "GPUs",
            (
                Panel(
                    "Utilization", "percentunit", (Query(series(catalog.GPU_UTILIZATION), "{{instance}} {{gpu}}"),),
                    needs="a GPU",
                ),
                Panel(
                    "Memory in use", "percentunit",
                    (
                        Query(
                            f"{series(catalog.GPU_MEMORY_USED)} / {series(catalog.GPU_MEMORY_TOTAL)}",
                            "{{instance}} {{gpu}}",
                        ),
                    ),
                    needs="a GPU",
                ),
                Panel("Power", "watt", (Query(series(catalog.GPU_POWER), "{{instance}} {{gpu}}"),), needs="a GPU"),
            ),
        ),
        Row(
            "Processes",
            (
                Panel(
                    "Memory", "bytes",
                    (Query(f"process_resident_memory_bytes{{{ALL_PARTS}}}", "{{job}} {{instance}}"),),
                ),
                Panel(
                    "CPU cores", "short",
                    (
                        Query(
                            f"rate(process_cpu_seconds_total{{{ALL_PARTS}}}[{WINDOW}])",
                            "{{job}} {{instance}}",
                        ),
                    ),
                ),
                Panel(
                    "Memory that the host has left", "bytes", (Query(of_all_parts(catalog.HOST_MEMORY_AVAILABLE)),)
                ),
            ),
        ),
        Row(
            "Discovery",
            (
                Panel(
                    "Parts that are known", "short",
                    (Query(f"max by (kind, state) ({of_all_parts(catalog.DISCOVERY_PARTS)})", "{{kind}}, {{state}}"),),
                    catalog.DISCOVERY_PARTS.help,
                ),
                Panel(
                    "Silence of DNS or Redis", "s", (Query(of_all_parts(catalog.DISCOVERY_SILENCE)),),
                    catalog.DISCOVERY_SILENCE.help,
                ),
                Panel(
                    "Age of leases", "s", (Query(of_all_parts(catalog.LEASE_AGE), "{{kind}} {{instance}}"),),
                    catalog.LEASE_AGE.help, needs="Redis",
                ),
            ),
        ),
    ),
)  # fmt: skip

_DEVICE_RATIO = f"{per_second(catalog.PREFIX_CACHE_HITS)} / {per_second(catalog.PREFIX_CACHE_QUERIES)}"
_HOST_RATIO = f"{per_second(catalog.EXTERNAL_PREFIX_CACHE_HITS)} / {per_second(catalog.EXTERNAL_PREFIX_CACHE_QUERIES)}"
KV_CACHE = Dashboard(
    "quire-kv-cache",
    "Quire: KV cache",
    "How full the KV cache is, what it saves, and what waits for it.",
    (
        Row(
            "Room",
            (
                Panel("KV cache in use", "percentunit", (Query(series(catalog.KV_CACHE_USAGE), "{{instance}}"),)),
                Panel("Swap space in use", "percentunit", (Query(series(catalog.CPU_CACHE_USAGE), "{{instance}}"),)),
                Panel(
                    "Why sequences wait", "short",
                    (Query(total(catalog.NUM_REQUESTS_WAITING_BY_REASON, ("reason",)), "{{reason}}"),),
                    catalog.NUM_REQUESTS_WAITING_BY_REASON.help,
                ),
                Panel("Preemptions", "ops", (Query(per_second(catalog.NUM_PREEMPTIONS), "preemptions"),)),
                Panel(
                    "Preemptions of a choice, mean", "short", (Query(mean(catalog.REQUEST_NUM_PREEMPTIONS), "mean"),)
                ),
                Panel(
                    "Size", "short",
                    (
                        Query(
                            f"sum by (instance, engine, num_gpu_blocks, num_cpu_blocks, block_size) "
                            f"({series(catalog.CACHE_CONFIG_INFO)})",
                            "{{instance}}, worker {{engine}}: {{num_gpu_blocks}} blocks of {{block_size}} tokens, "
                            "{{num_cpu_blocks}} on the host",
                        ),
                    ),
                    catalog.CACHE_CONFIG_INFO.help,
                ),
            ),
        ),
        Row(
            "Prefixes",
            (
                Panel("Tokens found on the device", "percentunit", (Query(_DEVICE_RATIO, "hits"),)),
                Panel(
                    "Tokens found in the host's memory", "percentunit", (Query(_HOST_RATIO, "hits"),),
                    catalog.EXTERNAL_PREFIX_CACHE_QUERIES.help, needs="swap space",
                ),
                Panel(
                    "Prompt tokens by source", "short",
                    (Query(per_second(catalog.PROMPT_TOKENS_BY_SOURCE, ("source",)), "{{source}} per second"),),
                    catalog.PROMPT_TOKENS_BY_SOURCE.help,
                ),
                _quantiles(
                    "Prompt tokens that were computed", catalog.REQUEST_PREFILL_KV_COMPUTED_TOKENS, "short"
                ),
                _quantiles("Prompt tokens", catalog.REQUEST_PROMPT_TOKENS, "short"),
                _quantiles("Generated tokens", catalog.REQUEST_GENERATION_TOKENS, "short"),
            ),
        ),
    ),
)  # fmt: skip

RECOVERY = Dashboard(
    "quire-recovery",
    "Quire: recovery",
    "What was lost, what went on, and how long clients waited for it.",
    (
        Row(
            "Streams",
            (
                Panel(
                    "Recovered and lost", "ops",
                    (
                        Query(per_second(catalog.STREAMS_RECOVERED), "recovered per second"),
                        Query(per_second(catalog.STREAMS_LOST), "lost per second"),
                    ),
                    f"{catalog.STREAMS_RECOVERED.help} {catalog.STREAMS_LOST.help}",
                ),
                Panel(
                    "Pauses that clients saw", "s",
                    tuple(Query(quantile(share, catalog.RECOVERY_PAUSE), f"p{share * 100:g}") for share in QUANTILES),
                    catalog.RECOVERY_PAUSE.help, needs="a part that was lost while it worked",
                ),
                Panel(
                    "Sent again", "ops", (Query(per_second(catalog.RESUBMISSIONS), "sequences"),),
                    catalog.RESUBMISSIONS.help,
                ),
            ),
        ),
        Row(
            "Parts",
            (
                Panel("Workers lost", "ops", (Query(per_second(catalog.WORKERS_LOST), "lost per second"),)),
                Panel(
                    "Sequences that wait for a scheduler", "short", (Query(total(catalog.SEQUENCES_PARKED), "waiting"),)
                ),
                Panel(
                    "Schedulers used although discovery lost them", "short",
                    (Query(series(catalog.SCHEDULERS_STALE), "{{instance}}"),), catalog.SCHEDULERS_STALE.help,
                ),
            ),
        ),
    ),
)  # fmt: skip

BOARDS = (OVERVIEW, PARTS, KV_CACHE, RECOVERY)
