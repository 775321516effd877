"""Reads checkpoints that are one GGUF file (llama.cpp's format), and decodes them with the `gguf` package."""

from services.worker.gguf.file import ROPE_FACTORS, GGUFFile, GGUFTensor, tensor_name
from services.worker.gguf.formats import FORMATS, GROUP_SIZE

__all__ = ["FORMATS", "GROUP_SIZE", "ROPE_FACTORS", "GGUFFile", "GGUFTensor", "tensor_name"]
