"""Where a model's weights come from: safetensors, GGUF, or random numbers in their shapes."""
