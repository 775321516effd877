"""Reads checkpoints that are one GGUF file (llama.cpp's format), and decodes them with the `gguf` package."""

from services.worker.gguf.config import ROPE_FACTORS, read_gguf_config
from services.worker.gguf.file import GGUFFile, tensor_name
from services.worker.gguf.formats import FORMATS, GROUP_SIZE

__all__ = ["FORMATS", "GROUP_SIZE", "ROPE_FACTORS", "GGUFFile", "read_gguf_config", "tensor_name"]
