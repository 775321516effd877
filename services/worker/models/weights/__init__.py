"""Sources of a model's weights: safetensors, GGUF, or random numbers."""
