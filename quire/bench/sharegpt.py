"""Finds the file of ShareGPT conversations."""

from __future__ import annotations

from quire.bench.prompts import DatasetError, Turn, read_sharegpt

# The file that the guides to serving engines benchmark with.
REPOSITORY = "anon8231489123/ShareGPT_Vicuna_unfiltered"
FILE = "ShareGPT_V3_unfiltered_cleaned_split.json"


def read_turns(path: str) -> list[Turn]:
    """Reads the conversations in the file at `path`; if it is empty, in the file on the Hugging Face hub, which is
    downloaded once. Raises DatasetError."""
    return read_sharegpt(path or _download())


def _download() -> str:
    from huggingface_hub import hf_hub_download

    try:
        return hf_hub_download(REPOSITORY, FILE, repo_type="dataset")
    except Exception as error:
        why = (str(error) or type(error).__name__).splitlines()[0]
        raise DatasetError(
            f"{FILE} cannot be downloaded from the Hugging Face hub ({why}): get it from {REPOSITORY}, and give "
            "--dataset-path"
        ) from error
