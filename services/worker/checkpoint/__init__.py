"""Finds the model's files, checks the small ones within milliseconds, and reads configuration and tokenizer.

Imports no torch.
"""

from services.worker.checkpoint.find import CONFIG_FILES, find_checkpoint, find_local
from services.worker.checkpoint.model_facts import ModelFacts
from services.worker.checkpoint.start_check import check_max_model_len, check_start

__all__ = ["CONFIG_FILES", "ModelFacts", "check_max_model_len", "check_start", "find_checkpoint", "find_local"]
