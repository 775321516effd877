"""Builds a worker: device, weights, KV cache and runner. Sizes the cache, warms up, and measures the step time."""

from services.worker.startup.load import LoadedWorker, load_worker, resolve_device

__all__ = ["LoadedWorker", "load_worker", "resolve_device"]
