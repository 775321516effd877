"""Builds a worker: device, weights, KV cache and runner. Sizes the cache, warms up, and measures the step time."""

from services.worker.startup.create_ops import fallback_reason
from services.worker.startup.gpu import unsupported_reason
from services.worker.startup.load import LoadedWorker, load_worker, resolve_device

__all__ = ["LoadedWorker", "fallback_reason", "load_worker", "resolve_device", "unsupported_reason"]
