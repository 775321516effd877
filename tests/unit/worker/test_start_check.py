"""What the model's small files tell is told before torch is imported, which takes seconds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from services.worker.checkpoint.start_check import check_start
from services.worker.config import WorkerConfig
from services.worker.errors import ModelError
from tests.fakes.waiting import HANG_S
from tests.unit.worker.tiny_models import save_model


def test_paths_and_lengths_are_checked(tmp_path: Path) -> None:
    save_model(tmp_path, "Llama", max_position_embeddings=128)
    check_start(WorkerConfig(model=str(tmp_path), max_model_len=128))
    check_start(WorkerConfig(model="someone/a-model-on-the-hub", max_model_len=10**9))
    for config, complaint in (
        (WorkerConfig(model="/nowhere"), "there is no directory /nowhere"),
        (WorkerConfig(model="/nowhere/model.gguf"), "there is no file /nowhere/model.gguf"),
        (WorkerConfig(model=str(tmp_path), max_model_len=129), "--max-model-len is 129; the model takes at most 128"),
        (WorkerConfig(model=str(tmp_path), chat_template="/nowhere"), "is neither a template nor a readable file"),
    ):
        with pytest.raises(ModelError, match=complaint):
            check_start(config)


def test_torch_is_not_needed_for_it() -> None:
    code = (
        "import sys\n"
        "from services.worker.main import check_start\n"
        "from services.worker.config import WorkerConfig\n"
        "check_start(WorkerConfig())\n"
        "assert not {'torch', 'transformers', 'huggingface_hub'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=HANG_S)
