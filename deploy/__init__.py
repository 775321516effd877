"""Deployment: the gateway, container images and monitoring."""
