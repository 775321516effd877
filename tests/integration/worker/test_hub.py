"""A model that is named rather than at hand comes from the hub, with the token of the environment, once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from shared.python_child import HOME
from shared.status import Status
from tests.fakes.waiting import HANG_S
from tests.integration.worker import fake_hub
from tests.integration.worker.fake_hub import NAME, TOKEN, FakeHub
from tests.integration.worker.process import OPTIONS, statuses, worker


@pytest.fixture
def hub(model_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with fake_hub.serving(model_directory) as hub:
        hub.files["training_log.csv"] = b"1,2,3"
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setenv("HF_HUB_OFFLINE", "0")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield hub


def start(directory: Path) -> list[Status]:
    """Of a worker that is ended when it is ready or has failed."""
    with worker(NAME, "--listen", f"unix:{directory}/worker.sock", *OPTIONS) as (_, reports):
        return statuses(reports)


def progress(found: list[Status]) -> list[float]:
    return [status.progress for status in found if status.detail == "downloading the model" and status.progress]


def test_a_download_is_reported_and_not_repeated(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = start(tmp_path)
    assert (first[-1].state, first[-1].facts["model"]) == ("ready", NAME)
    assert len(progress(first)) > 1
    assert progress(first) == sorted(progress(first))
    assert progress(first)[-1] == 1.0
    assert sorted(hub.downloads) == sorted(hub.files.keys() - {"training_log.csv"})

    second = start(tmp_path)
    assert second[-1].state == "ready"
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    without_a_hub = start(tmp_path)
    assert without_a_hub[-1].state == "ready"
    assert progress(second) == progress(without_a_hub) == []
    assert len(hub.downloads) == len(hub.files) - 1


def test_the_same_weights_are_not_downloaded_in_two_layouts(hub: FakeHub, tmp_path: Path) -> None:
    hub.files["consolidated.safetensors"] = b"The same weights in the layout of Mistral's own code."
    assert start(tmp_path)[-1].state == "ready"
    assert "model.safetensors" in hub.downloads
    assert "consolidated.safetensors" not in hub.downloads


def test_downloads_go_to_the_directory_that_is_named(hub: FakeHub, tmp_path: Path) -> None:
    options = (NAME, "--download-dir", str(tmp_path / "models"), "--listen", f"unix:{tmp_path}/worker.sock", *OPTIONS)
    with worker(*options) as (_, reports):
        assert statuses(reports)[-1].state == "ready"
    assert list((tmp_path / "models").glob("models--*/snapshots/*/*.safetensors"))
    assert not list((tmp_path / "cache").rglob("*.safetensors"))


def test_the_download_job_of_kubernetes_gets_all_that_a_worker_needs(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = yaml.safe_load((HOME / "deploy/kubernetes/components/download/job.yaml").read_text())
    hub.files["consolidated.safetensors"] = b"The same weights in the layout of Mistral's own code."
    program, *arguments = job["spec"]["template"]["spec"]["containers"][0]["command"]
    command = [str(Path(sys.executable).with_name(program)), *arguments]
    monkeypatch.setenv("QUIRE_MODEL", NAME)
    result = subprocess.run(command, check=True, capture_output=True, text=True, timeout=HANG_S)
    assert sorted(hub.downloads) == sorted(hub.files.keys() - {"training_log.csv", "consolidated.safetensors"})
    assert {path.name for path in Path(result.stdout.strip()).iterdir()} == set(hub.downloads)

    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    assert start(tmp_path)[-1].state == "ready"


def test_two_that_start_together_download_nothing_twice(hub: FakeHub) -> None:
    """As the job and a worker, or several workers, that share a volume."""
    command = [sys.executable, "-m", "quire.cli.main", "download", NAME]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    first, second = (process.communicate(timeout=HANG_S)[0].strip() for process in both)
    assert [process.returncode for process in both] == [0, 0]
    assert first == second
    assert sorted(hub.downloads) == sorted(hub.files.keys() - {"training_log.csv"})


def test_a_download_that_fails_is_told_in_one_sentence(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN")
    command = [sys.executable, "-m", "quire.cli.main", "download"]
    for words, status, message in (
        ([], 2, "name a model of the Hugging Face hub"),
        ([NAME], 1, f"{NAME} is no directory, and the Hugging Face hub has no such model (private? set HF_TOKEN)"),
    ):
        result = subprocess.run([*command, *words], capture_output=True, text=True, timeout=HANG_S)
        assert (result.returncode, result.stderr.splitlines()[-1]) == (status, f"quire download: {message}")


def test_a_private_model_needs_a_token(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN")
    last = start(tmp_path)[-1]
    assert (last.state, last.detail) == (
        "failed",
        f"{NAME} is no directory, and the Hugging Face hub has no such model (private? set HF_TOKEN)",
    )
    assert hub.downloads == []
    # The older name of the variable.
    monkeypatch.setenv("HUGGING_FACE_HUB_TOKEN", TOKEN)
    assert start(tmp_path)[-1].state == "ready"


def test_whether_several_models_fit_is_known_from_their_configurations(hub: FakeHub, model_directory: Path) -> None:
    """`quire serve` downloads those and no weights."""
    words = (NAME, str(model_directory), "--kv-cache-memory-bytes", str(2**50), "--device", "cpu")
    command = (sys.executable, "-m", "quire.cli.main", "serve", *words)
    result = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ), check=False)
    assert result.returncode == 2
    assert f"the model {NAME} does not fit: it takes 1,048,576.0 GiB (weights " in result.stderr
    assert "config.json" in hub.downloads
    assert not any(file.endswith(".safetensors") for file in hub.downloads)
