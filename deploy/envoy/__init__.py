"""Renders the configuration of the gateway, an Envoy proxy. Single hosts and containers use the same template."""
