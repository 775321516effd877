"""Puts a worker together: device, weights, KV cache, and the runner over them, sized, measured and warmed up."""
