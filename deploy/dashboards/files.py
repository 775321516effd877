"""The files that this package writes, by their paths in the project."""

from __future__ import annotations

import textwrap

from deploy.dashboards.alerts import ALERTS, Alert
from deploy.dashboards.boards import BOARDS
from deploy.dashboards.panels import to_json
from shared.metrics import Metric, catalog

_WRITTEN_BY = "Written by `python -m deploy.dashboards`; change what that reads."
_METRICS = f"""# Metrics

Every metric of every part, with where it is served. {_WRITTEN_BY}

- **Where.** router, scheduler, worker, gateway: at the part's own `--metrics-port`. server: at `GET /metrics` of the
  gateway's port for clients (8000), which one of the routers answers; schedulers' counters have one series there for
  each `scheduler` and `router`.
- **Names.** `vllm:` marks what vLLM has, too, with its meaning and buckets, and its labels but for `engine` (and, of
  `vllm:cache_config_info`, the labels of vLLM's other options). `quire:` marks what only Quire has. What vLLM has and
  Quire does not is [below](#what-only-vllm-has). Counters end in `_total`, and histograms have `_bucket`, `_sum` and
  `_count`, as Prometheus writes them. The latencies to the first and to the next token, and the time per output
  token, have one more bucket than in vLLM; it ends at the limit of an alert. The histograms of numbers of tokens go
  on to 1,000,000, whatever the length of the model.
- **Labels.** `engine` numbers the workers of a scheduler. Only series of a single worker have it; in vLLM, all have it.
  `model_version` is left out for models without versions. A router's series about requests have the
  label `router`, its id. No label takes a value from a request, so the number of series depends on the fleet alone. A
  router keeps the series of the 100 models and versions that were asked for last.
- **Processes.** Routers, schedulers and workers also have prometheus_client's metrics of their process, such as
  `process_resident_memory_bytes`. A gateway has those of Envoy's process, and Envoy's own metrics.

| metric | kind | labels | where | meaning |
|---|---|---|---|---|
"""
_LEFT_OUT = """
## What only vLLM has

| metric | why Quire does not have it |
|---|---|
"""
_ALERTS = f"""# Alerts

Prometheus reads them from [rules.yml](../deploy/prometheus/rules.yml). {_WRITTEN_BY}
Helm's value `alerts` changes an alert by its name: its limit if it has one, its duration and its severity, or it leaves
the alert out. Elsewhere, change the rules.

"""
_RULES = """# Alerts, with what to do in docs/alerts.md. Written by `python -m deploy.dashboards`.
groups:
  - name: quire
    rules:
"""
_PROMETHEUS_RULE = """# Alerts for the Prometheus operator, as in deploy/prometheus/rules.yml.
# Written by `python -m deploy.dashboards`.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: quire
spec:
  groups:
    - name: quire
      rules:
"""


def files() -> dict[str, str]:
    """Returns the text of each file."""
    dashboards = {f"deploy/grafana/dashboards/{board.uid}.json": to_json(board) for board in BOARDS}
    return {
        **dashboards,
        "deploy/prometheus/rules.yml": _RULES + "".join(map(_rule, ALERTS)),
        "deploy/kubernetes/components/monitoring/rules.yaml": _PROMETHEUS_RULE
        + "".join(_rule(one, 8) for one in ALERTS),
        "docs/alerts.md": _ALERTS + "\n".join(map(_section, ALERTS)),
        "docs/metrics.md": _METRICS + "".join(map(_row, catalog.ALL)) + _LEFT_OUT + _left_out_rows(),
    }


def _left_out_rows() -> str:
    return "".join(f"| `{name}` | {why} |\n" for name, why in catalog.LEFT_OUT.items())


def _row(metric: Metric) -> str:
    name = metric.name + ("_total" if metric.kind == "counter" else "")
    where = ", ".join(part.value for part in metric.parts)
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{name}` | {metric.kind} | {labels} | {where} | {metric.help} |\n"


def _rule(alert: Alert, indent: int = 6) -> str:
    lines = (
        f"- alert: {alert.name}",
        f"  expr: {_folded(alert.expression, indent + 4)}",
        f"  for: {alert.after}",
        f"  labels: {{severity: {alert.severity}}}",
        "  annotations:",
        f"    summary: {_folded(alert.meaning, indent + 6)}",
        f"    description: {_folded(alert.remedy, indent + 6)}",
        f"    runbook_url: docs/alerts.md#{alert.name.lower()}",
        *((f'    limit: "{alert.limit}"',) if alert.limit else ()),
    )
    return "".join(f"{' ' * indent}{line}\n" for line in lines)


def _folded(text: str, indent: int) -> str:
    """Returns a text without line breaks as a folded block of YAML, in lines of at most 120 characters."""
    space = " " * indent
    lines = textwrap.wrap(text, 120 - indent, break_long_words=False, break_on_hyphens=False)
    return ">-\n" + "\n".join(f"{space}{line}" for line in lines)


def _section(alert: Alert) -> str:
    needs = f" Needs {alert.needs}." if alert.needs else ""
    limit = f" Limit: {alert.limit}." if alert.limit else ""
    lasting = "at once" if alert.after == "0m" else f"after {alert.after}"
    return (
        f"## {alert.name}\n\n{alert.meaning} Severity: {alert.severity}, {lasting}.{limit}{needs}\n\n"
        f"**What to do.** {alert.remedy}\n\n```promql\n{alert.expression}\n```\n"
    )
