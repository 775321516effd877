"""`quire models` lists every architecture once, with how it runs."""

from __future__ import annotations

import json

import pytest

from quire.cli import models


def test_all_architectures_are_listed_with_how_they_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert models.main(["--json"]) == 0
    listed = {one["architecture"]: one["kind"] for one in json.loads(capsys.readouterr().out)}
    assert listed["LlamaForCausalLM"] == "native"
    assert listed["ArceeForCausalLM"] == "transformers"
    assert listed["Mistral3ForConditionalGeneration"] == "text"
    assert listed["BertModel"] == "encoder"


def test_a_part_of_a_name_selects(capsys: pytest.CaptureFixture[str]) -> None:
    assert models.main(["falcon"]) == 0
    shown = capsys.readouterr().out
    assert "FalconForCausalLM" in shown
    assert "LlamaForCausalLM" not in shown


def test_a_name_that_no_architecture_has_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert models.main(["unheard"]) == 1
    assert "no architecture has 'unheard' in its name" in capsys.readouterr().err
