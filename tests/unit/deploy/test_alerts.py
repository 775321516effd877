"""Every alert fires when it should and is silent when it should be, by Prometheus' own tool (`promtool test rules`)."""

from __future__ import annotations

import shutil
import subprocess
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.dashboards.alerts import ALERTS
from tests.fakes.tools import needs

ROOT = Path(__file__).parents[3]
RULES = ROOT / "deploy" / "prometheus" / "rules.yml"
RULE: dict[str, dict[str, Any]] = {
    rule["alert"]: rule for rule in yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
}
UNPACKED = ROOT / ".venv-prometheus" / "usr" / "bin" / "promtool"
PROMTOOL = str(UNPACKED) if UNPACKED.exists() else shutil.which("promtool")
needs_promtool = needs(PROMTOOL, "promtool")

# How long the series of a test last. Longer than the longest window and delay together.
MINUTES = 400
Values = dict[str, str]  # notation of promtool, by series


def ends(failing: float) -> Values:
    """Of a router with 1,000 choices per minute, `failing` of which fail."""
    return {
        'vllm:request_success_total{job="router",finished_reason="stop"}': f"0+{1000 - failing}x{MINUTES}",
        'vllm:request_success_total{job="router",finished_reason="error"}': f"0+{failing}x{MINUTES}",
    }


def values(name: str, below: str, above: str, *, num_below: int, num_above: int) -> Values:
    """Of a histogram that gets so many values per minute up to the bound `below`, and from there up to `above`."""
    everything = num_below + num_above
    counts = {below: num_below, above: everything, "+Inf": everything}
    buckets = {f'{name}_bucket{{job="router",le="{le}"}}': f"0+{count}x{MINUTES}" for le, count in counts.items()}
    return buckets | {f'{name}_count{{job="router"}}': f"0+{everything}x{MINUTES}"}


def gauge(series: str, value: float) -> Values:
    return {series: f"{value}x{MINUTES}"}


def lost(minutes: int) -> Values:
    """Of the schedulers of model b, which are gone for so many minutes."""
    return lost_series('quire:schedulers_ready{job="router",model_name="b"}', minutes)


def lost_series(name: str, minutes: int) -> Values:
    return {name: f"1x{MINUTES - minutes} stale"}


WATCHDOG = "envoy_server_worker_watchdog_miss"


def memory(per_minute: int) -> Values:
    where = '{job="worker",instance="w"}'
    return {
        f"process_resident_memory_bytes{where}": f"1000+{per_minute}x{MINUTES}",
        **gauge(f"quire:host_memory_available_bytes{where}", 100_000),
    }


def counted(name: str, per_minute: int, job: str = "router") -> Values:
    return {f'{name}{{job="{job}"}}': f"0+{per_minute}x{MINUTES}"}


def answers(failing: int, cut: int = 0, prefix: str = "gateway") -> Values:
    """Of a gateway with 1,000 answers per minute, of which `failing` are 5xx errors and `cut` others are cut off."""
    labels = f'job="gateway",envoy_http_conn_manager_prefix="{prefix}"'
    numbers = {"2": 900 - failing, "4": 100, "5": failing}
    return {
        f'envoy_http_downstream_rq_xx{{{labels},envoy_response_code_class="{first}"}}': f"0+{number}x{MINUTES}"
        for first, number in numbers.items()
    } | {f"envoy_http_rq_reset_after_downstream_response_started{{{labels}}}": f"0+{cut}x{MINUTES}"}


def healthy(number: int, gateway: str = "g", cluster: str = "routers") -> Values:
    labels = f'job="gateway",instance="{gateway}",envoy_cluster_name="{cluster}"'
    return gauge(f"envoy_cluster_membership_healthy{{{labels}}}", number)


LATENCY, FIRST, NEXT, LAG = (
    "vllm:e2e_request_latency_seconds", "vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds",
    "quire:event_loop_lag_seconds",
)  # fmt: skip
USAGE, WAITING = 'vllm:kv_cache_usage_perc{job="scheduler"}', 'vllm:num_requests_waiting{job="scheduler",instance="s"}'
MOST, GPU = 'quire:max_num_seqs{job="scheduler",instance="s",engine="0"}', 'quire:gpu_utilization_ratio{job="worker"}'
READY, SILENCE = (
    'quire:schedulers_ready{job="router",model_name="a"}',
    'quire:discovery_silence_seconds{job="router",kind="scheduler"}',
)
READY_C, WORKER = READY.replace('"a"', '"c"'), 'quire:worker_ready{job="worker",instance="w"}'
LABELS_WITHOUT_ROUTERS = {"severity": "critical", "job": "router"}
# For each alert: series under which it fires, and series under which it does not.
CASES: dict[str, tuple[Values, Values]] = {
    "HighKVCacheUsage": (gauge(USAGE, 0.96), gauge(USAGE, 0.94)),
    "HighRequestLatency": (
        values(LATENCY, "30.0", "60.0", num_below=98, num_above=2),
        values(LATENCY, "30.0", "60.0", num_below=995, num_above=5),
    ),
    "HighQueueDepth": (gauge(WAITING, 101), gauge(WAITING, 100)),
    "QueueLongerThanBatch": (gauge(WAITING, 9) | gauge(MOST, 8), gauge(WAITING, 8) | gauge(MOST, 8)),
    "GPUUnderused": (gauge(GPU, 0.6) | gauge(WAITING, 1), gauge(GPU, 0.6) | gauge(WAITING, 0)),
    "GPUSaturated": (gauge(GPU, 0.97), gauge(GPU, 0.9)),
    "LowSuccessRate": (ends(6), ends(4)),
    "AvailabilityBurnsFast": (ends(80), ends(60)),
    "AvailabilityBurnsSlowly": (ends(40), ends(20)),
    "GatewayErrors": (answers(6), answers(4)),
    "SlowFirstToken": (
        values(FIRST, "0.2", "0.25", num_below=94, num_above=6),
        values(FIRST, "0.2", "0.25", num_below=96, num_above=4),
    ),
    "SlowTokens": (
        values(NEXT, "0.03", "0.05", num_below=94, num_above=6),
        values(NEXT, "0.03", "0.05", num_below=96, num_above=4),
    ),
    "NoReadyScheduler": (gauge(READY, 0), gauge(READY, 1)),
    "NoHealthyRouter": (healthy(0) | healthy(2, "other"), healthy(1) | healthy(2, "other")),
    # Model b is lost 10 minutes before the end, or 40 minutes before it. Model c has never had a worker.
    "ModelWithoutScheduler": (
        lost(10) | gauge(READY, 1),
        lost(40) | gauge(READY, 1) | lost_series('quire:schedulers_ready{job="router"}', 10)
        | gauge(READY_C, 0),
    ),
    "ModelNotReady": (gauge(READY_C, 0) | gauge(READY, 1), gauge(READY_C, 1) | gauge(READY, 1)),
    "WorkerNotReady": (gauge(WORKER, 0), gauge(WORKER, 1)),
    "StaleDiscovery": (gauge(SILENCE, 31), gauge(SILENCE, 29)),
    "StreamsLost": (counted("quire:streams_lost_total", 1), counted("quire:streams_lost_total", 0)),
    "MemoryGrows": (memory(1000), memory(100)),
    "EventLoopHeldUp": (
        values(LAG, "0.2", "0.5", num_below=99, num_above=1), values(LAG, "0.2", "0.5", num_below=99, num_above=0)
    ),
    "GatewayHeldUp": (counted(WATCHDOG, 1, "gateway"), counted(WATCHDOG, 0, "gateway")),
    "PartNotScraped": (gauge('up{job="worker",instance="w"}', 0), gauge('up{job="node",instance="n"}', 0)),
    "SlowClients": (counted("quire:slow_client_pauses_total", 90), counted("quire:slow_client_pauses_total", 30)),
}  # fmt: skip


def check(directory: Path, tests: list[dict[str, Any]], **further: str) -> None:
    """Runs `promtool test rules`, once for each alert or set of alerts, with no other rules. (It evaluates all rules of
    its files, whether a test asks for them or not.) `further`: fields of promtool's file."""
    by_alerts: dict[frozenset[str], list[dict[str, Any]]] = {}
    for test in tests:
        by_alerts.setdefault(frozenset(found["alertname"] for found in test["alert_rule_test"]), []).append(test)
    for alerts, tests_of in by_alerts.items():
        group = {"name": "quire", "rules": [RULE[name] for name in sorted(alerts)]}
        (directory / "rules.yml").write_text(yaml.safe_dump({"groups": [group]}))
        file = {"rule_files": ["rules.yml"], "tests": tests_of} | further
        (directory / "tests.yml").write_text(yaml.safe_dump(file))
        command = [str(PROMTOOL), "test", "rules", "tests.yml"]
        result = subprocess.run(command, cwd=directory, capture_output=True, text=True)
        assert result.returncode == 0, result.stdout + result.stderr


def test_every_alert_has_a_case() -> None:
    assert CASES.keys() == {alert.name for alert in ALERTS}


def test_every_alert_says_what_to_do() -> None:
    text = (ROOT / "docs" / "alerts.md").read_text()
    for alert in ALERTS:
        assert f"## {alert.name}\n" in text
        assert alert.remedy in text


@needs_promtool
def test_no_scheduler_is_ready_if_no_router_can_be_scraped(tmp_path: Path) -> None:
    found = {
        "alertname": "NoReadyScheduler",
        "eval_time": "10m",
        "exp_alerts": [expected(RULE["NoReadyScheduler"], {READY: ""}) | {"exp_labels": LABELS_WITHOUT_ROUTERS}],
    }
    tests = [{"interval": "1m", "input_series": [], "alert_rule_test": [found]}]
    check(tmp_path, tests)


@needs_promtool
def test_alerts_fire_when_they_should_and_are_silent_when_they_should_be(tmp_path: Path) -> None:
    tests = []
    for name, cases in CASES.items():
        for fires, case in zip((True, False), cases, strict=True):
            found: dict[str, Any] = {"alertname": name, "eval_time": f"{MINUTES}m"} | (
                {} if fires else {"exp_alerts": []}
            )
            series = [{"series": one, "values": text} for one, text in case.items()]
            tests.append({"interval": "1m", "input_series": series, "alert_rule_test": [found]})
            if fires:
                found["exp_alerts"] = [expected(RULE[name], case)]
    check(tmp_path, tests)


def failing(*stretches: tuple[int, int]) -> Values:
    """Of a router with 1,000 choices per minute. `stretches`: pairs of a number of minutes, and of the choices per
    minute that fail in them; the last stretch ends with the test, and before the first one none fails."""
    per_minute = [number for minutes, number in stretches for _ in range(minutes)]
    failed = list(accumulate([0] * (MINUTES - len(per_minute)) + per_minute, initial=0))
    series = 'vllm:request_success_total{job="router",finished_reason="%s"}'
    stopped = [1000 * minute - number for minute, number in enumerate(failed)]
    return {series % "error": " ".join(map(str, failed)), series % "stop": " ".join(map(str, stopped))}


def quiet(num_failed: int) -> Values:
    """Of a router with one choice per minute, the last `num_failed` of which fail."""
    before = MINUTES - num_failed
    series = 'vllm:request_success_total{job="router",finished_reason="%s"}'
    return {
        series % "error": f"0x{before} 1+1x{num_failed - 1}",
        series % "stop": f"0+1x{before} {before}x{num_failed - 1}",
    }


def two_errors() -> Values:
    """Of a gateway with one answer per minute, the last two of which are 5xx errors."""
    labels = 'job="gateway",envoy_http_conn_manager_prefix="gateway"'
    counts = {"2": f"0+1x{MINUTES - 2} {MINUTES - 2}x1", "5": f"0x{MINUTES - 2} 1+1x1"}
    return {
        f'envoy_http_downstream_rq_xx{{{labels},envoy_response_code_class="{first}"}}': text
        for first, text in counts.items()
    } | {f"envoy_http_rq_reset_after_downstream_response_started{{{labels}}}": f"0x{MINUTES}"}


# By alert, further series under which it is silent: just beside the limit, or over it in one of two windows alone.
SILENT = {
    "GPUUnderused": (gauge(GPU, 0.75) | gauge(WAITING, 1),),
    # Answers of the admin interface fail, and those of clients do not.
    "GatewayErrors": (answers(0) | answers(900, prefix="admin"), answers(2, cut=2), two_errors()),
    "LowSuccessRate": (quiet(2),),
    "NoHealthyRouter": (healthy(1) | healthy(0, cluster="traces"),),
    "AvailabilityBurnsFast": (failing((6, 200)), failing((50, 200), (10, 0)), quiet(4)),
    "AvailabilityBurnsSlowly": (failing((35, 200)), failing((320, 200), (40, 0)), quiet(4)),
}


@needs_promtool
@pytest.mark.parametrize("name", SILENT)
def test_alerts_are_silent_if_only_a_part_of_their_condition_holds(name: str, tmp_path: Path) -> None:
    found = {"alertname": name, "eval_time": f"{MINUTES}m", "exp_alerts": []}
    tests = [
        {
            "interval": "1m",
            "input_series": [{"series": one, "values": text} for one, text in case.items()],
            "alert_rule_test": [found],
        }
        for case in SILENT[name]
    ]
    check(tmp_path, tests)


@needs_promtool
@pytest.mark.parametrize("name", ["AvailabilityBurnsFast", "AvailabilityBurnsSlowly"])
def test_errors_of_a_quiet_night_count_once_there_are_some(name: str, tmp_path: Path) -> None:
    """Four failures alone are not enough (SILENT)."""
    case = quiet(30)
    found = {"alertname": name, "eval_time": f"{MINUTES}m", "exp_alerts": [expected(RULE[name], case)]}
    given = [{"series": one, "values": text} for one, text in case.items()]
    check(tmp_path, [{"interval": "1m", "input_series": given, "alert_rule_test": [found]}])


@needs_promtool
@pytest.mark.parametrize("case", [answers(6), answers(0, cut=6), answers(3, cut=3)], ids=["5xx", "cut", "both"])
def test_what_fails_at_gateways_alone_is_no_failure_of_routers(case: Values, tmp_path: Path) -> None:
    """Such as errors that Envoy itself makes, and streams that end with their router."""
    given = [{"series": one, "values": text} for one, text in (case | ends(0)).items()]
    found = [
        {"alertname": name, "eval_time": f"{MINUTES}m", "exp_alerts": alerts}
        for name, alerts in (("GatewayErrors", [expected(RULE["GatewayErrors"], case)]), ("LowSuccessRate", []))
    ]
    check(tmp_path, [{"interval": "1m", "input_series": given, "alert_rule_test": found}])


OF_MODELS = (
    "HighRequestLatency", "LowSuccessRate", "AvailabilityBurnsFast", "AvailabilityBurnsSlowly", "SlowFirstToken",
    "SlowTokens", "GPUUnderused", "GPUSaturated",
)  # fmt: skip
OF_NAMESPACES = ("HighQueueDepth", "GatewayErrors", "NoReadyScheduler", "ModelWithoutScheduler")


@needs_promtool
@pytest.mark.parametrize(
    ("name", "label"),
    [
        *((name, "namespace") for name in (*OF_MODELS, *OF_NAMESPACES)),
        *((name, "model_name") for name in OF_MODELS),
    ],
)
def test_a_healthy_namespace_or_model_does_not_hide_the_trouble_of_another(
    name: str, label: str, tmp_path: Path
) -> None:
    """Its traffic may be a hundred times that of the other."""
    of_two = {}
    for value, case in (("sick", CASES[name][0]), ("healthy", CASES[name][1])):
        for series, text in case.items():
            start, _, growth = text.partition("+")
            if value == "healthy" and growth:
                number, _, count = growth.partition("x")
                text = f"{start}+{100 * int(number)}x{count}"
            of_two[series.replace("{", f'{{{label}="{value}",')] = text
    labels = expected(RULE[name], CASES[name][0])["exp_labels"] | {label: "sick"}
    alert = {"exp_labels": labels, "exp_annotations": RULE[name]["annotations"]}
    found = {"alertname": name, "eval_time": f"{MINUTES}m", "exp_alerts": [alert]}
    given = [{"series": one, "values": text} for one, text in of_two.items()]
    check(tmp_path, [{"interval": "1m", "input_series": given, "alert_rule_test": [found]}])


@needs_promtool
def test_a_process_that_grows_once_uses_up_no_memory(tmp_path: Path) -> None:
    """Such as a cache that fills: by most of what is left within five minutes, and then not any more."""
    given = [
        {"series": f'{name}{{job="worker",instance="w"}}', "values": text}
        for name, text in (
            ("process_resident_memory_bytes", "1000x60 1000+13000x5 66000x200"),
            ("quire:host_memory_available_bytes", "75000x60 75000-13000x5 10000x200"),
        )
    ]
    found = [{"alertname": "MemoryGrows", "eval_time": f"{minute}m", "exp_alerts": []} for minute in range(60, 200)]
    check(tmp_path, [{"interval": "1m", "input_series": given, "alert_rule_test": found}])


@needs_promtool
def test_a_model_whose_workers_are_gone_is_without_scheduler_though_one_is_connected(tmp_path: Path) -> None:
    name, series = "ModelWithoutScheduler", 'quire:schedulers_ready{job="router",model_name="b"}'
    given = [{"series": series, "values": "1x20 0x20"}, {"series": READY, "values": "1x40"}]
    alert = expected(RULE[name], {series: ""})
    found = [
        {"alertname": name, "eval_time": "20m", "exp_alerts": []},
        {"alertname": name, "eval_time": "25m", "exp_alerts": [alert]},
    ]
    tests = [{"interval": "1m", "input_series": given, "alert_rule_test": found}]
    check(tmp_path, tests)


@needs_promtool
def test_alerts_wait_as_long_as_they_say(tmp_path: Path) -> None:
    """The condition of each case holds from the start or, if it looks back, after 5 minutes at the latest."""
    tests = []
    units = {"s": 1, "m": 60, "h": 3600}
    for alert in ALERTS:
        case = CASES[alert.name][0]
        seconds = int(alert.after[:-1]) * units[alert.after[-1]]
        # The case of this one begins with the loss of a model, which Prometheus sees a minute after the last value.
        begin = (MINUTES - 10 + 1) * 60 if alert.name == "ModelWithoutScheduler" else 0
        series = [{"series": one, "values": text} for one, text in case.items()]
        late = 310 if "[" in alert.expression else 10
        found = [
            {"alertname": alert.name, "eval_time": f"{begin + at}s", "exp_alerts": alerts}
            for at, alerts in ((seconds - 10, []), (seconds + late, [expected(RULE[alert.name], case)]))
            if at >= 0
        ]
        tests.append({"interval": "1m", "input_series": series, "alert_rule_test": found})
    check(tmp_path, tests, evaluation_interval="10s")


def expected(rule: dict[str, Any], case: Values) -> dict[str, Any]:
    labels = dict(rule["labels"])
    kept = {
        "QueueLongerThanBatch": ("instance",), "StaleDiscovery": ("job", "kind"), "EventLoopHeldUp": (),
        "GatewayHeldUp": (),
        "ModelWithoutScheduler": ("model_name",), "ModelNotReady": ("model_name",),
        "NoHealthyRouter": ("job", "instance", "envoy_cluster_name"),
        "PartNotScraped": ("job", "instance"), "WorkerNotReady": ("job", "instance"),
    }  # fmt: skip
    names = kept.get(rule["alert"], ("job", "instance") if rule["expr"].split("{")[0] in _KEPT_WHOLE else ())
    for series in case:
        inside = series.partition("{")[2].rstrip("}")
        pairs = dict(pair.split("=", 1) for pair in inside.split(","))
        labels |= {name: pairs[name].strip('"') for name in names if name in pairs}
        break
    return {"exp_labels": labels, "exp_annotations": rule["annotations"]}


_KEPT_WHOLE = {"vllm:kv_cache_usage_perc", "predict_linear(process_resident_memory_bytes"}


@needs_promtool
def test_promtool_finds_nothing_wrong() -> None:
    result = subprocess.run([str(PROMTOOL), "check", "rules", str(RULES)], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"{len(ALERTS)} rules found" in result.stdout


@needs_promtool
def test_promtool_reads_the_configuration_of_prometheus() -> None:
    command = [str(PROMTOOL), "check", "config", "prometheus.yml"]
    result = subprocess.run(command, cwd=RULES.parent, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "SUCCESS: 1 rule files found" in result.stdout


def test_a_rule_says_what_its_alert_does() -> None:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    for alert, rule in zip(ALERTS, group["rules"], strict=True):
        texts = rule["annotations"]["summary"], rule["annotations"]["description"]
        assert (rule["alert"], rule["expr"], rule["for"], *texts) == (
            alert.name, alert.expression, alert.after, alert.meaning, alert.remedy,
        )  # fmt: skip
