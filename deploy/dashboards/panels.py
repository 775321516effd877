"""Builds panels and dashboards with Grafana's own builders."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from grafana_foundation_sdk.builders import dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import (
    DashboardLinkType,
    DataSourceRef,
    Threshold,
    ThresholdsMode,
    VariableOption,
    VariableRefresh,
    VariableSort,
)

from shared.metrics import catalog

# The reader chooses the source, the namespaces and the models above the panels.
SOURCE = DataSourceRef(type_val="prometheus", uid="${source}")
_READY = catalog.SCHEDULERS_READY.name
# Name, label and query of each choice. Series have a namespace only if Prometheus found their part in Kubernetes. Else
# the only choice is "All".
_CHOICES = (
    ("namespace", "Namespace", f"label_values({_READY}, namespace)"),
    ("model", "Model", f'label_values({_READY}{{namespace=~"$namespace"}}, model_name)'),
)
_WITH_MODEL = {metric.name for metric in catalog.ALL if "model_name" in metric.labels}
QUANTILES = (0.5, 0.9, 0.99)
_WIDTH = 24  # of a dashboard, in Grafana's units


@dataclass(frozen=True, slots=True)
class Query:
    expression: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """`needs`: what must be there for the panel to have data, if it is not always there, such as "a GPU"."""

    title: str
    unit: str  # one of Grafana's names of units
    queries: tuple[Query, ...]
    description: str = ""
    is_tile: bool = False
    # Of a tile: the value from which it is green, and the one from which it is yellow.
    goal: tuple[float, float] | None = None
    needs: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Dashboard:
    uid: str
    title: str
    description: str
    rows: tuple[Row, ...]

    @property
    def panels(self) -> Iterable[Panel]:
        return (panel for row in self.rows for panel in row.panels)


def to_json(board: Dashboard) -> str:
    """Returns what Grafana reads."""
    builder = (
        dashboard.Dashboard(board.title)
        .uid(board.uid).description(board.description).tags(["quire"]).editable().refresh("5s").time("now-15m", "now")
        .link(dashboard.DashboardLink("Quire").type(DashboardLinkType.DASHBOARDS).tags(["quire"]).as_dropdown(True).keep_time(True))
    )  # fmt: skip
    builder = builder.with_variable(dashboard.DatasourceVariable("source").label("Prometheus").type("prometheus"))
    for name, label, query in _CHOICES:
        builder = builder.with_variable(
            dashboard.QueryVariable(name).label(label).datasource(SOURCE).query(query)
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED).sort(VariableSort.ALPHABETICAL_ASC)
            .multi(True).include_all(True).all_value(".*").current(VariableOption(True, "All", "$__all"))
        )  # fmt: skip
    for row in board.rows:
        builder = builder.with_row(dashboard.Row(row.title))
        width = _WIDTH // min(4 if row.panels[0].is_tile else 3, len(row.panels))
        for panel in row.panels:
            builder = builder.with_panel(_built(panel).span(width).height(5 if panel.is_tile else 8))
    found = builder.build()
    return json.dumps(found, cls=JSONEncoder, indent=2, sort_keys=True) + "\n"


def of_chosen(expression: str) -> str:
    """Restricts metrics to the namespaces that the reader has chosen, and those that have a model to these models."""

    def chosen(found: re.Match[str]) -> str:
        name = found[1]
        known = name in _WITH_MODEL or re.sub(r"_(total|bucket|count|sum)$", "", name) in _WITH_MODEL
        of_models = 'model_name=~"$model",' if known else ""
        return f'{name}{{namespace=~"$namespace",{of_models}'

    return re.sub(r"([a-z0-9_:]+)\{", chosen, expression)


def _built(panel: Panel) -> Any:
    description = panel.description + (f" Only with {panel.needs}." if panel.needs else "")
    built: Any = stat.Panel() if panel.is_tile else timeseries.Panel().min(0).fill_opacity(8)
    built = built.title(panel.title).unit(panel.unit).description(description.strip()).datasource(SOURCE)
    if panel.goal is not None:
        built = built.thresholds(_thresholds(*panel.goal))
    for index, query in enumerate(panel.queries):
        target = prometheus.Dataquery().expr(of_chosen(query.expression)).ref_id(chr(ord("A") + index))
        built = built.with_target(target.datasource(SOURCE).legend_format(query.legend or "__auto"))
    return built


def _thresholds(green: float, yellow: float) -> Any:
    steps = [Threshold(None, "red"), Threshold(yellow, "yellow"), Threshold(green, "green")]
    return dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps)
