"""Downloads a model from the Hugging Face hub. huggingface_hub's environment variables, such as HF_TOKEN and HF_HOME,
have their usual effect."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from huggingface_hub import DryRunFileInfo, snapshot_download
from huggingface_hub.errors import (
    DryRunError,
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
)
from huggingface_hub.utils.tqdm import tqdm

from services.worker.errors import ModelError
from services.worker.progress import Progress

# huggingface_hub's name for the progress bar that counts bytes written to disk.
_BYTES_BAR = "huggingface_hub.snapshot_download"
# Weights in Mistral's own layout. Most models with these files have the same weights in transformers' layout, too.
_CONSOLIDATED = "consolidated*.safetensors"


def download(
    name: str, revision: str | None, patterns: Sequence[str], progress: Progress, cache: str | None = None
) -> Path:
    """Downloads the files that match `patterns` and are not on this machine yet. Returns the directory that contains
    all matching files, new and old. `progress` receives the downloaded fraction of the missing bytes; several threads
    call it, but one at a time. `cache`: the directory for downloads; None: huggingface_hub's default directory. Raises
    ModelError if the model cannot be found or downloaded."""
    try:
        files = _list_files(name, revision, patterns, cache)
        names = [file.filename for file in files if file.filename.endswith(".safetensors")]
        redundant = {found for found in names if fnmatch(found, _CONSOLIDATED)}
        redundant = redundant if redundant < set(names) else set()
        if not files:
            # The hub does not answer. The files of an earlier download are enough, which may have left these out.
            redundant = {_CONSOLIDATED}
        missing = sum(file.file_size or 0 for file in files if file.will_download and file.filename not in redundant)
        bar = _reporting_bar(missing, progress) if missing else None
        return Path(
            snapshot_download(
                name,
                revision=revision,
                allow_patterns=list(patterns),
                ignore_patterns=sorted(redundant),
                tqdm_class=bar,
                cache_dir=cache,
            )
        )
    except HFValidationError as error:
        raise ModelError(f"{name} is neither a directory nor the name of a model on the Hugging Face hub") from error
    except GatedRepoError as error:
        raise ModelError(f"{name} is gated on the Hugging Face hub: ask for access there, then set HF_TOKEN") from error
    except RepositoryNotFoundError as error:
        raise ModelError(
            f"{name} is no directory, and the Hugging Face hub has no such model (private? set HF_TOKEN)"
        ) from error
    except LocalEntryNotFoundError as error:
        raise ModelError(
            f"{name} is no directory, and the Hugging Face hub cannot be reached to download it"
        ) from error
    except Exception as error:
        raise ModelError(
            f"{name} is no directory, and downloading it from the Hugging Face hub failed: {error}"
        ) from error


def _list_files(
    name: str, revision: str | None, patterns: Sequence[str], cache: str | None
) -> Sequence[DryRunFileInfo]:
    """Returns the files that match `patterns`; none if the hub does not answer. In that case, the download that follows
    reports the error, or uses files that were downloaded before."""
    try:
        return snapshot_download(
            name,
            revision=revision,
            allow_patterns=list(patterns),
            tqdm_class=_HiddenBar,
            dry_run=True,
            cache_dir=cache,
        )
    except DryRunError:
        return []


class _HiddenBar(tqdm):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **(options | {"disable": True}))  # type: ignore[no-untyped-call]


def _reporting_bar(total: int, progress: Progress) -> type[tqdm]:
    """Returns a subclass of huggingface_hub's progress bar that calls `progress` with the downloaded fraction, whether
    or not a terminal shows the bar. `total`: bytes to download. The bar's own total cannot be used, because it grows
    each time the download of another file begins."""
    lock = threading.Lock()
    done = 0

    class Bar(tqdm):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            self._counts_bytes = options.get("name") == _BYTES_BAR
            super().__init__(*arguments, **options)  # type: ignore[no-untyped-call]

        def update(self, n: float | None = 1) -> Any:
            nonlocal done
            if self._counts_bytes:
                with lock:
                    done += int(n or 0)
                    progress(min(done / total, 1.0))
            return super().update(n)

    return Bar
