"""`quire download`: downloads what a worker needs of a model, so that its start need not wait for it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from services.worker.checkpoint import find_checkpoint
from services.worker.config import WorkerConfig
from services.worker.errors import ModelError
from shared.config import option, resolve

PROG = "quire download"


@dataclass(frozen=True, slots=True)
class DownloadConfig:
    """With the names of the worker's options, so that both can have the same environment."""

    model: str = option("", "Name of the model on the Hugging Face hub.", positional=True)
    revision: str = option("", "Branch, tag or commit on the hub. If left out, main.")
    download_dir: str = option("", "Directory for downloads from the hub. If left out, HF_HUB_CACHE.")


def main(argv: Sequence[str]) -> int:
    config = resolve(
        DownloadConfig,
        argv,
        prog=PROG,
        description="Downloads the files of a model that a worker needs and that are not on this machine yet.",
    )
    if not config.model:
        print(f"{PROG}: name a model of the Hugging Face hub", file=sys.stderr)
        return 2
    worker = WorkerConfig(model=config.model, revision=config.revision, download_dir=config.download_dir)
    try:
        checkpoint = find_checkpoint(worker)
    except ModelError as error:
        print(f"{PROG}: {error}", file=sys.stderr)
        return 1
    print(checkpoint.path)
    return 0
