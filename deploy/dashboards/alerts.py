"""Alerts: what is wrong, from when on, and what to do about it.

`python -m deploy.dashboards` writes them for Prometheus (deploy/prometheus/rules.yml) and for people (docs/alerts.md).
"""

from __future__ import annotations

from dataclasses import dataclass

from deploy.dashboards.queries import ALL_PARTS, MODEL, NAMESPACE, of_all_parts, per_second, quantile, series, total
from shared.metrics import Metric, catalog

AVAILABILITY = 0.995  # objective: the share of choices that end as asked
# Fewer failures in an hour or more, or within five minutes, wake nobody: of 60 choices in a quiet night, a single one
# is more than the objective allows. `increase` extrapolates, by a quarter if Prometheus scrapes once a minute.
_MIN_FAILED, _MIN_FAILED_AT_ONCE = 5, 3
_FAILING = f"{1 - AVAILABILITY:.3f}"  # the share of failures that the objective allows
_WINDOW_S = 300  # over which the gateways' answers are counted
_LAG_S = 0.2  # docs/adr/0021-answers-in-pieces.md


@dataclass(frozen=True, slots=True)
class Alert:
    """`after`: how long the expression must hold, as Prometheus writes it. `meaning`: a sentence on what happens;
    `remedy`: what to look at and do. `needs`: as in `Panel`. `limit`: the number that operators may change, written as
    in the expression, where it follows a > or <, and in the meaning if that has it. The Helm chart replaces both."""

    name: str
    expression: str
    after: str
    severity: str  # info, warning or critical
    meaning: str
    remedy: str
    needs: str = ""
    limit: str = ""


def _failing(window: str) -> str:
    failed = per_second(catalog.REQUEST_SUCCESS, MODEL, window=window, finished_reason="error")
    return f"{failed} / {per_second(catalog.REQUEST_SUCCESS, MODEL, window=window)}"


def _num_failed(window: str) -> str:
    return f"sum by ({', '.join(MODEL)}) ({_grew(catalog.REQUEST_SUCCESS, window, finished_reason='error')})"


def _burns(times: float, long: str, short: str) -> str:
    """Whether the errors that the objective allows are used up so many times too fast, in both windows, and not by a
    few errors alone."""
    limit = f"{times * (1 - AVAILABILITY):.3f}"
    least = f"{_num_failed(long)} > {_MIN_FAILED - 0.5:g}"
    return f"{_failing(long)} > {limit} and {_failing(short)} > {limit} and {least}"


def _grew(metric: Metric, window: str, part: str = "", **labels: str) -> str:
    return f"increase({series(metric, part, **labels)}[{window}])"


def _of_gateways(name: str, *labels: str) -> str:
    """Returns how fast a counter of Envoy grows for requests of clients. Envoy counts those to its admin interface with
    another prefix, and readiness checks not at all."""
    inside = ",".join(('job="gateway"', 'envoy_http_conn_manager_prefix="gateway"', *labels))
    return f"sum by (namespace) (rate({name}{{{inside}}}[{_WINDOW_S // 60}m]))"


_ANSWERS = _of_gateways("envoy_http_downstream_rq_xx")
_ERRORS = _of_gateways("envoy_http_downstream_rq_xx", 'envoy_response_code_class="5"')
# Among the answers, Envoy counts one that is cut off by the status with which it began.
_CUT_OFF = _of_gateways("envoy_http_rq_reset_after_downstream_response_started")
_READY = series(catalog.SCHEDULERS_READY)
# Routers of the release before do not say the model.
_WAS_READY = series(catalog.SCHEDULERS_READY, model_name=None)
_OF_MODELS = f"max by ({', '.join(MODEL)})"
_NOT_READY = f"{_OF_MODELS} (max_over_time({_WAS_READY}[30m])) > 0 unless {_OF_MODELS} ({_READY}) > 0"
_MEMORY = f"process_resident_memory_bytes{{{ALL_PARTS}}}"
_LEFT = of_all_parts(catalog.HOST_MEMORY_AVAILABLE)
_WAITING = total(catalog.NUM_REQUESTS_WAITING, NAMESPACE)
_GPU_USE = f"avg by ({', '.join(MODEL)}) ({series(catalog.GPU_UTILIZATION)})"
_EACH_PART = ", ".join((*NAMESPACE, "instance"))
_HELD_UP = (
    f"sum by ({_EACH_PART}) ({_grew(catalog.EVENT_LOOP_LAG, '5m', '_count')}) - "
    f"sum by ({_EACH_PART}) ({_grew(catalog.EVENT_LOOP_LAG, '5m', '_bucket', le=f'{_LAG_S:g}')}) > 0"
)
# Envoy's own watchdog. Its limit is 0.2 s by default.
_WATCHDOG = 'envoy_server_worker_watchdog_miss{job="gateway"}'

ALERTS = (
    Alert(
        "HighKVCacheUsage", f"{series(catalog.KV_CACHE_USAGE)} > 0.95", "5m", "warning",
        "The KV cache is nearly full: new sequences wait, and running ones may be preempted.",
        "Look at the preemptions and at why sequences wait (dashboard KV cache). Add workers, set --swap-space, or "
        "lower --max-num-seqs or --max-model-len.",
        limit="0.95",
    ),
    Alert(
        "HighRequestLatency", f"{quantile(0.99, catalog.E2E_REQUEST_LATENCY, MODEL, '5m')} > 30", "5m", "critical",
        "One request in a hundred for a model takes longer than 30 s.",
        "Compare queue, prefill and decode times (dashboard overview). Queue: add workers. Prefill: raise "
        "--max-num-batched-tokens or --target-tbt-ms. Decode: long answers, or too many at once (--max-num-seqs).",
        limit="30",
    ),
    Alert(
        "HighQueueDepth", f"{_WAITING} > 100", "2m", "warning",
        "More than 100 sequences wait.",
        "Add workers, or let clients send less: at --max-num-queued-reqs requests are refused with 429.",
        limit="100",
    ),
    Alert(
        "QueueLongerThanBatch",
        f"sum by ({_EACH_PART}) ({series(catalog.NUM_REQUESTS_WAITING)}) > "
        f"sum by ({_EACH_PART}) ({series(catalog.MAX_NUM_SEQS)})",
        "5m", "warning",
        "More sequences wait at a scheduler than its workers can run at once.",
        "Everybody waits for at least one whole answer of somebody else. Add workers, or raise --max-num-seqs if the "
        "KV cache has room.",
    ),
    Alert(
        "GPUUnderused",
        f"{_GPU_USE} < 0.7 and {total(catalog.NUM_REQUESTS_WAITING, MODEL)} > 0", "15m", "info",
        "A model's GPUs have time left although sequences wait.",
        "Something before them is the limit: routers (event loop lag), a small --max-num-seqs, or a full KV cache.",
        needs="a GPU", limit="0.7",
    ),
    Alert(
        "GPUSaturated", f"{_GPU_USE} > 0.95", "15m", "info",
        "A model's GPUs may have no time left for a burst of requests.",
        "Utilization is the share of time in which any kernel runs, so a single long answer can bring it near 1. If "
        "running sequences are near --max-num-seqs, too, add workers before the queue grows.",
        needs="a GPU", limit="0.95",
    ),
    Alert(
        "LowSuccessRate",
        f"{_failing('5m')} > {_FAILING} and {_num_failed('5m')} > {_MIN_FAILED_AT_ONCE - 0.4:g}",
        "5m", "critical",
        f"The share of a model's choices that end with a server error is more than {_FAILING}.",
        "The routers' logs name each such error with its request id; the panel Errors shows their kinds.",
        limit=_FAILING,
    ),
    Alert(
        "AvailabilityBurnsFast", _burns(14.4, "1h", "5m"), "2m", "critical",
        f"At this rate, the errors that {AVAILABILITY:.1%} allows in 30 days are used up in about two days.",
        "As for LowSuccessRate, at once.",
    ),
    Alert(
        "AvailabilityBurnsSlowly", _burns(6.0, "6h", "30m"), "15m", "warning",
        f"At this rate, the errors that {AVAILABILITY:.1%} allows in 30 days are used up in five days.",
        "As for LowSuccessRate, today.",
    ),
    Alert(
        "GatewayErrors",
        f"({_ERRORS} + {_CUT_OFF}) / {_ANSWERS} > {_FAILING} "
        f"and ({_ERRORS} + {_CUT_OFF}) * {_WINDOW_S} > {_MIN_FAILED_AT_ONCE - 0.4:g}",
        "5m", "critical",
        "The share of the gateways' HTTP answers that are 5xx errors, or are cut off because their router was lost, is "
        f"more than {_FAILING}.",
        "If LowSuccessRate is silent, routers do not make these errors: look whether routers restart again and again, "
        "or cannot be reached (NoHealthyRouter). The gateway's access log has the reason of each error in `flags` and "
        "`details`; with `overload` there, bodies that arrive fill the gateway's memory (docs/operations.md). A 504 "
        "comes from a client's own deadline.",
        limit=_FAILING,
    ),
    Alert(
        "SlowFirstToken",
        f"{quantile(0.95, catalog.TIME_TO_FIRST_TOKEN, MODEL, '5m')} > {catalog.FIRST_TOKEN_TARGET_S}",
        "10m", "warning",
        f"One request in twenty for a model waits longer than {catalog.FIRST_TOKEN_TARGET_S} s for its first token.",
        "Compare the time in the queue with the prefill (dashboard overview). Long prompts: look at the prefix hits. "
        "Another limit may suit your model (Helm: `alerts`).",
        limit=f"{catalog.FIRST_TOKEN_TARGET_S}",
    ),
    Alert(
        "SlowTokens",
        f"{quantile(0.95, catalog.INTER_TOKEN_LATENCY, MODEL, '5m')} > {catalog.PER_TOKEN_TARGET_S}",
        "10m", "warning",
        f"One token in twenty of a model comes later than {catalog.PER_TOKEN_TARGET_S} s after the one before.",
        "Lower --target-tbt-ms so that prompts wait more, or --max-num-seqs so that fewer sequences share a step. "
        "Another limit may suit your model (Helm: `alerts`).",
        limit=f"{catalog.PER_TOKEN_TARGET_S}",
    ),
    Alert(
        "NoReadyScheduler", f"max by (namespace) ({_READY}) == 0 or absent({_READY})", "30s", "critical",
        "No router of a namespace knows a scheduler with a worker, or no router at all can be scraped: requests are "
        "refused with 503.",
        "Look at the schedulers' and workers' logs: a worker that does not start says why.",
    ),
    Alert(
        "NoHealthyRouter", 'envoy_cluster_membership_healthy{job="gateway",envoy_cluster_name="routers"} == 0', "30s",
        "critical",
        "A gateway reaches no router whose health check succeeds: most of its requests fail with 503.",
        "If NoReadyScheduler fires, too, begin there: routers are healthy only with a scheduler that is ready. "
        "Otherwise look at the routers' logs, at the network between, and at how this gateway finds routers "
        "(quire:discovery_parts).",
    ),
    Alert(
        "ModelWithoutScheduler", _NOT_READY, "30s", "critical",
        "A model that a router could use within the last half hour has no scheduler with a worker: its requests are "
        "refused with 503, and with 404 once its schedulers have been gone for five minutes.",
        "Look at the logs of this model's schedulers and workers. If the model was removed on purpose, the alert ends "
        "after half an hour.",
    ),
    Alert(
        "ModelNotReady", f"{_OF_MODELS} ({_READY}) == 0", "30m", "critical",
        "A model whose schedulers run has had no worker for half an hour.",
        "Look at the logs of its workers, and at how far they are: `kubectl get pods`, or the panel Start of workers.",
    ),
    Alert(
        "WorkerNotReady", f"max_over_time({series(catalog.WORKER_READY)}[30m]) == 0", "1h", "warning",
        "A worker has not been ready for an hour or more: it loads its model, or starts again and again.",
        "Its log says how far it is, or why it ends. Large models take long to download: see docs/kubernetes.md.",
    ),
    Alert(
        "StaleDiscovery", f"max by (namespace, job, kind) ({of_all_parts(catalog.DISCOVERY_SILENCE)}) > 30", "1m",
        "warning",
        "DNS or Redis has not answered for 30 s. Known parts stay in use; new ones are not found.",
        "Look at Redis, its Sentinels or the name server, and at the network between.",
        limit="30",
    ),
    Alert(
        "StreamsLost", f"sum by (namespace) ({_grew(catalog.STREAMS_LOST, '5m')}) > 0", "0m", "critical",
        "An answer failed because a part was lost, and nothing took it over.",
        "The router's log names the request and the reason. Report it: this should not happen.",
    ),
    Alert(
        "MemoryGrows",
        # It waits longer than it looks back, or it would fire after a process has grown once.
        f"predict_linear({_MEMORY}[30m], 4 * 3600) - {_MEMORY} > on (job, instance) {_LEFT}",
        "45m", "warning",
        "At this rate, a process uses up the memory of its host or container within four hours.",
        "Restart the part when convenient (it drains first), and report what it was doing.",
    ),
    Alert(
        "EventLoopHeldUp", _HELD_UP, "0m", "warning",
        f"A task held up a router's event loop for more than {_LAG_S:g} s, and with it all streams of that router.",
        "Give the routers more CPU time, or add routers.",
    ),
    Alert(
        "GatewayHeldUp", f"sum by ({_EACH_PART}) (increase({_WATCHDOG}[5m])) > 0", "0m", "warning",
        "A gateway's thread stood still for more than 0.2 s, and with it all streams of that gateway.",
        "Give the gateways more CPU time, or add gateways.",
    ),
    Alert(
        "PartNotScraped", f"up{{{ALL_PARTS}}} == 0", "15m", "warning",
        "Prometheus cannot scrape a part, so that the alerts on its metrics are silent.",
        "Look whether it runs, and whether its network policy lets Prometheus in (Helm: `monitoringNamespace`).",
    ),
    Alert(
        "SlowClients", f"{per_second(catalog.SLOW_CLIENT_PAUSES, NAMESPACE, window='5m')} > 1", "10m", "info",
        "Sequences are paused because their clients do not read: more than 1 per second.",
        "The answers go on when the clients read, and end when a client has read nothing for 60 s. Look for proxies "
        "that buffer or clients that hang.",
        limit="1",
    ),
)  # fmt: skip
