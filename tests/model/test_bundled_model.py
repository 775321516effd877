"""The bundled models answer what `training/README.md` says they answer, and were never shown the test's questions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import combinations, islice
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

from training import corpus, holdout
from training.agreement import agreement
from training.evaluate import KIND_NAMES, OPEN, SEED, Score, score
from training.generate import greedy, load, prompt_ids, text_of
from training.kinds.catalogue import KINDS
from training.recipe import DRAFT, LARGE
from training.recipe import SEED as TRAINING_SEED
from training.train import train

MODELS = Path(__file__).parents[2] / "quire" / "models"
ASKED = 200
ENOUGH = 0.95


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """The models are so small that a second thread would wait more than compute."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def scores() -> Mapping[str, Score]:
    """Of every kind, by a model that is loaded once."""
    return {result.kind: result for result in score(MODELS / LARGE.name, ASKED)}


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KIND_NAMES)
def test_answers_what_it_was_never_shown(scores: Mapping[str, Score], kind: str) -> None:
    result = scores[kind]
    print(f"{kind}: {100 * result.share:.1f} % of {result.asked}")
    assert result.share >= ENOUGH, result.wrong[:5]


@pytest.fixture(scope="module")
def training_text() -> list[tuple[str, str]]:
    """Questions and answers as the training draws them: the first 20,000 chats of its own seed."""
    turns = []
    for chat in islice(corpus.chats(TRAINING_SEED), 20_000):
        spoken = [message["content"] for message in chat if message["role"] != "system"]
        turns += list(zip(spoken[::2], spoken[1::2], strict=True))
        turns += [(message["content"], "") for message in chat if message["role"] == "system"]
    return turns


def test_training_text_holds_no_held_out_word_in_any_wording(training_text: list[tuple[str, str]]) -> None:
    held_out = set(corpus.open_words()[1])
    seen = {word for turn in training_text for text in turn for word in holdout.words_of(text)}
    assert len(held_out) > 200
    assert not held_out & seen


def test_training_text_holds_no_held_out_pair_of_numbers(training_text: list[tuple[str, str]]) -> None:
    pairs = {pair for question, _ in training_text for pair in combinations(holdout.numbers(question), 2)}
    assert len(pairs) > 1000
    assert not [pair for pair in pairs if holdout.is_held_out_pair(*pair)]


def test_test_questions_use_held_out_operands_only() -> None:
    words = set(corpus.open_words()[1])
    for name in OPEN:
        for item in corpus.held_out_set(SEED, name, ASKED):
            numbers = holdout.numbers(item.question)
            held_out = set(holdout.words_of(item.question)) & words
            pair = any(holdout.is_held_out_pair(*pair) for pair in combinations(numbers, 2))
            one_end = "from 1 to" in item.answer  # "count to 12" is the pair (1, 12)
            assert held_out or pair or one_end, item.question


def test_no_trained_wording_contains_a_held_out_one() -> None:
    guard = holdout.Guard([], [wording for kind in KINDS for wording in kind.held_out_wordings])
    # The guard that every training exchange passes finds each held-out wording, whatever fills its slots...
    for kind in KINDS:
        for wording in kind.held_out_wordings:
            question = wording.format(**dict.fromkeys(_slots(wording), "zz"))
            assert guard.leak(question, "") is not None, wording
        # ... and no training wording is so close to one that it could never be trained on.
        for wording in (*kind.wordings, *kind.again):
            question = wording.format(**dict.fromkeys(_slots(wording), "zz"))
            assert corpus.guard().leak(question, "") is None, wording


def test_same_seed_same_text() -> None:
    assert list(islice(corpus.chats(7), 50)) == list(islice(corpus.chats(7), 50))
    assert list(islice(corpus.chats(7), 50)) != list(islice(corpus.chats(8), 50))


def test_same_seed_same_weights(tmp_path: Path) -> None:
    small = replace(DRAFT, name="small", steps=3, batch_tokens=512, hidden_size=64, intermediate_size=64)
    words = AutoTokenizer.from_pretrained(MODELS / LARGE.name).backend_tokenizer
    for run in ("first", "second"):
        train(small, words, tmp_path / run, compiled=False)
    first, second = (load_file(tmp_path / run / "small" / "model.safetensors") for run in ("first", "second"))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(("name", "limit"), [(LARGE.name, 8_000_000), (DRAFT.name, 2_000_000)])
def test_files_are_small_and_free_of_pickle(name: str, limit: int) -> None:
    files = {path.name: path.stat().st_size for path in (MODELS / name).iterdir()}
    assert set(files) == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert sum(files.values()) <= limit


@pytest.mark.parametrize("name", [LARGE.name, DRAFT.name])
def test_llama_with_a_context_of_2048(name: str) -> None:
    config = json.loads((MODELS / name / "config.json").read_text(encoding="utf-8"))
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["max_position_embeddings"] >= 2048


def test_draft_shares_the_tokenizer() -> None:
    for file in ("tokenizer.json", "tokenizer_config.json"):
        assert (MODELS / DRAFT.name / file).read_bytes() == (MODELS / LARGE.name / file).read_bytes()


@pytest.mark.thorough
def test_draft_agrees_with_the_large_model() -> None:
    agreed, compared = agreement(MODELS, count=20)
    print(f"the draft's best token is the large model's in {100 * agreed / compared:.1f} % of {compared:,} tokens")
    assert agreed / compared >= 0.8


@pytest.mark.parametrize(
    "text", ["Hello, world!", " 7 plus  12\n", "naïve café", "日本語 🦙", "don't\t“quote”", "\x00\x7f", "é"]
)
def test_any_text_survives_the_tokenizer(text: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(MODELS / LARGE.name)
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_held_out_words_are_letters_to_the_tokenizer() -> None:
    tokenizer = AutoTokenizer.from_pretrained(MODELS / LARGE.name)
    for word in corpus.open_words()[1]:
        assert tokenizer.tokenize(word) == list(word)


def test_chat_template_takes_system_user_and_assistant() -> None:
    tokenizer = AutoTokenizer.from_pretrained(MODELS / LARGE.name)
    chat: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
        {"role": "assistant", "content": "Hello!"},
        {"role": "user", "content": " Bye "},
    ]
    assert tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False) == (
        "<|begin|><|system|>Be brief.<|end|><|user|>Hi<|end|><|assistant|>Hello!<|end|><|user|>Bye<|end|><|assistant|>"
    )


TURNS = [
    ("What is 7 plus 5?", "7 plus 5 is 12."),
    ("Which day follows Monday?", "The day after Monday is Tuesday."),
    ("How do you spell garden?", 'The word "garden" is spelled g-a-r-d-e-n.'),
    ("Reverse the word lamp.", 'Reversed, "lamp" is "pmal".'),
]


@pytest.mark.parametrize(
    "turns", [TURNS, [*TURNS, ("Thank you!", "You are welcome!")]], ids=["questions", "thanks after them"]
)
def test_a_chat_of_several_turns_with_a_system_message(turns: list[tuple[str, str]]) -> None:
    model, tokenizer = load(MODELS / LARGE.name)
    chat = [{"role": "system", "content": "You are a helpful assistant."}]
    for question, expected in turns:
        chat.append({"role": "user", "content": question})
        (reply,) = greedy(model, [prompt_ids(tokenizer, chat)], set(model.generation_config.eos_token_id), 60)
        chat.append({"role": "assistant", "content": text_of(tokenizer, reply)})
        assert chat[-1]["content"] == expected


def _slots(wording: str) -> list[str]:
    return [part.split("}")[0] for part in wording.split("{")[1:]]
