"""Puts a worker together: device, weights, KV cache, and the runner over them, sized, measured and warmed up."""

from services.worker.startup.load import Engine, load_engine, resolve_device

__all__ = ["Engine", "load_engine", "resolve_device"]
