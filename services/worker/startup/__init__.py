"""Puts a worker together: device, weights, KV cache, and the runner over them, sized, measured and warmed up."""

from services.worker.startup.load import LoadedWorker, load_worker, resolve_device

__all__ = ["LoadedWorker", "load_worker", "resolve_device"]
