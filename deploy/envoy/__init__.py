"""The gateway: Envoy, its configuration rendered from one template for a laptop and for containers alike."""
