"""Grafana's dashboards, generated: `python -m deploy.dashboards` writes them to deploy/grafana/dashboards.

Queries name metrics by `shared.metrics.catalog`, so none asks for one that does not exist.
"""
