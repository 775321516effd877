"""Checkpoints in one GGUF file (llama.cpp's format), decoded with the `gguf` package."""
