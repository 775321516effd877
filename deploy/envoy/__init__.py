"""The gateway: Envoy's configuration, rendered from one template for single hosts and containers."""
