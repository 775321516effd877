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


@pytest.mark.parametrize("name", ["gpt-neox", "GPTNeoXForCausalLM", "gpt_neox"])
def test_case_and_punctuation_do_not_matter(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert models.main([name]) == 0
    assert "GPTNeoXForCausalLM" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("mamba", "falcon_mamba, mamba, mamba2: models with recurrent state are not supported yet"),
        ("Qwen3NextForCausalLM", "qwen3_next: models with recurrent state are not supported yet"),
        ("T5ForConditionalGeneration", "t5: encoder-decoder models are not supported"),
        ("BartModel", "bart: encoder-decoder models are not supported"),
    ],
)
def test_the_reason_why_a_type_is_not_supported_is_said(
    name: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert models.main([name]) == 1
    assert capsys.readouterr().err == f"quire models: {reason}\n"
    assert models.main([name, "--json"]) == 1
    assert capsys.readouterr() == ("[]\n", f"quire models: {reason}\n")


def test_types_of_the_name_that_are_not_supported_stand_below_those_that_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert models.main(["falcon"]) == 0
    shown = capsys.readouterr().out
    assert "not supported: falcon_h1, falcon_mamba: models with recurrent state are not supported yet" in shown
