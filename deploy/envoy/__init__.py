"""Renders the configuration of the gateway, an Envoy proxy. One template serves single hosts and containers."""
