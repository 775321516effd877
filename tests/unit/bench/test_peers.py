"""How the comparison with other servers starts each of them."""

from __future__ import annotations

import argparse
import os
import sys

import pytest

from benchmarks.peers import peers
from shared.python_child import HOME


def test_quire_imports_nothing_from_the_current_directory_and_peers_nothing_of_quire(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("PYTHONPATH", "PYTHONSAFEPATH"):
        monkeypatch.delenv(name, raising=False)
    arguments = argparse.Namespace(
        model="m", int8=True, llama_server="/l/llama-server", gguf="g", gguf_q8=None, vllm="/v/vllm"
    )
    quire, int8, llama, vllm = peers(arguments)

    for peer in (quire, int8):
        assert tuple(peer.command[:5]) == (sys.executable, "-P", "-m", "quire", "serve")
        assert peer.environment["PYTHONSAFEPATH"] == "1"
    for peer in (llama, vllm):
        assert str(HOME) not in peer.environment.get("PYTHONPATH", "")
    assert vllm.environment["PATH"].split(os.pathsep)[0] == "/v"
