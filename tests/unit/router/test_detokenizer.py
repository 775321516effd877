"""Text leaves in whole characters, and all of it together is what the tokens say."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from services.router.text.detokenizer import Vocabulary
from tests.integration.router.small_tokenizers import SPECIAL_TOKENS, byte_fallback, byte_level

TEXTS = (
    "Hello, world!",
    "  leading and   inner spaces\n\ttabs",
    "Grüße aus Köln, déjà vu, żółć",
    "你好，世界 こんにちは привет",
    "👋🏽 👨‍👩‍👧‍👦 🎉 \u0301combining",
    "a�b",
)
# What at most three bytes that begin a character look like to a decoder that gives up on them.
INCOMPLETE = ("", "\ufffd", "\ufffd" * 2, "\ufffd" * 3)


def tokenizers() -> dict[str, Tokenizer]:
    return {"byte_level": byte_level(), "byte_fallback": byte_fallback()}


def deltas(
    tokenizer: Tokenizer, prompt: list[int], output: list[int], *, skip_special_tokens: bool = True
) -> list[str]:
    detokenizer = Vocabulary(tokenizer).detokenizer(prompt, skip_special_tokens)
    return [detokenizer.push(token_id) for token_id in output]


def test_a_prompt_is_read_once_for_all_its_answers() -> None:
    class Prompt(list[int]):
        num_reads = 0

        def __iter__(self) -> Iterator[int]:
            self.num_reads += 1
            return super().__iter__()

    tokenizer = byte_fallback()
    prompt = Prompt([SPECIAL_TOKENS.index("<s>")] * 9)
    answer = Vocabulary(tokenizer).detokenizers(prompt)
    ids = tokenizer.encode("one two", add_special_tokens=False).ids
    assert ["".join(map(one.push, ids)) for one in (answer(), answer(), answer())] == ["one two"] * 3
    assert prompt.num_reads == 1


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback"])
@pytest.mark.parametrize("text", TEXTS)
def test_every_text_comes_back_in_whole_characters(kind: str, text: str) -> None:
    tokenizer = tokenizers()[kind]
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    pieces = deltas(tokenizer, [], ids)
    # Without the space that sentencepiece puts before the first word.
    assert "".join(pieces) == text
    assert "\ufffd" not in "".join(pieces) or "\ufffd" in text


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback"])
@pytest.mark.parametrize("text", TEXTS)
@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_an_answer_cut_anywhere_is_the_text_up_to_its_last_whole_character(
    kind: str, text: str, data: st.DataObject
) -> None:
    tokenizer = tokenizers()[kind]
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    cut = data.draw(st.integers(0, len(ids)))
    assert text.startswith("".join(deltas(tokenizer, [], ids[:cut])))


@settings(deadline=None, max_examples=300)
@given(ids=st.lists(st.integers(0, byte_level().get_vocab_size() + 10), max_size=40), skip=st.booleans())
def test_byte_level_deltas_equal_the_library_s_whole_decoding(ids: list[int], skip: bool) -> None:
    whole = byte_level().decode(ids, skip_special_tokens=skip)
    pieces = "".join(deltas(byte_level(), [], ids, skip_special_tokens=skip))
    # The library shows the bytes of an incomplete character at the end as U+FFFD; they are never sent.
    assert whole.startswith(pieces)
    assert whole[len(pieces) :] in INCOMPLETE


@settings(deadline=None, max_examples=300)
@given(ids=st.lists(st.integers(0, byte_fallback().get_vocab_size() + 10), max_size=40))
def test_byte_fallback_deltas_decode_the_tokens_bytes(ids: list[int]) -> None:
    vocabulary = Vocabulary(byte_fallback())
    hidden = {byte_fallback().token_to_id(token) for token in SPECIAL_TOKENS[:3]}
    data = b"".join(vocabulary.token_bytes(token_id) for token_id in ids if token_id not in hidden)
    whole = data.decode(errors="replace").removeprefix(" ")
    pieces = "".join(deltas(byte_fallback(), [], ids))
    assert whole.startswith(pieces)
    assert whole[len(pieces) :] in INCOMPLETE


@settings(deadline=None, max_examples=200)
@given(text=st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=40), data=st.data())
def test_an_output_reads_on_from_its_prompt(text: str, data: st.DataObject) -> None:
    for tokenizer in tokenizers().values():
        ids = tokenizer.encode("x" + text, add_special_tokens=False).ids
        cut = data.draw(st.integers(1, len(ids)))
        whole = Vocabulary(tokenizer)
        before = b"".join(whole.token_bytes(token_id) for token_id in ids[:cut])
        # A character that the prompt begins and the output ends belongs to the output.
        assert "".join(deltas(tokenizer, ids[:cut], ids[cut:])) == _after(before, whole, ids)


def _after(before: bytes, vocabulary: Vocabulary, ids: list[int]) -> str:
    everything = b"".join(vocabulary.token_bytes(token_id) for token_id in ids)
    complete = len(before.decode(errors="ignore"))
    return everything.decode()[complete:]


def test_special_tokens_are_hidden_unless_asked_for() -> None:
    tokenizer = byte_level()
    ids = tokenizer.encode("<|im_start|>Hi<|im_end|></s>").ids
    assert "".join(deltas(tokenizer, [], ids)) == "Hi"
    assert "".join(deltas(tokenizer, [], ids, skip_special_tokens=False)) == "<|im_start|>Hi<|im_end|></s>"


def test_the_space_before_the_first_word_is_dropped_after_a_prompt_without_text_only() -> None:
    tokenizer = byte_fallback()
    beginning = tokenizer.token_to_id(SPECIAL_TOKENS[1])
    assert beginning is not None
    word = tokenizer.encode("Hello", add_special_tokens=False).ids
    assert "".join(deltas(tokenizer, [beginning], word)) == "Hello"
    assert "".join(deltas(tokenizer, [beginning, *word], word)) == " Hello"


def test_ids_without_a_text_have_none() -> None:
    assert deltas(byte_level(), [], [10**6, 2**32 - 1]) == ["", ""]


def test_added_tokens_beyond_ascii_keep_their_own_characters() -> None:
    tokenizer = Tokenizer.from_str(byte_level().to_str())
    text = "é<｜begin▁of▁sentence｜>"
    tokenizer.add_tokens([text])
    assert deltas(tokenizer, [], [tokenizer.get_vocab()[text]]) == [text]


def test_other_decoders_are_decoded_in_a_sliding_window() -> None:
    names = ["[UNK]", "hello", "world", "##s", ",", "!"]
    tokenizer = Tokenizer(models.WordPiece({name: index for index, name in enumerate(names)}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece()
    prompt, output = [1, 4], [2, 3, 5, 1, 2]
    whole = tokenizer.decode(prompt + output)
    assert tokenizer.decode(prompt) + "".join(deltas(tokenizer, prompt, output)) == whole


def test_special_tokens_that_are_asked_for_are_shown() -> None:
    ids = byte_level().encode("<|im_start|>Hi<|im_end|>").ids
    vocabulary = Vocabulary(byte_level())
    visible = vocabulary.special_ids(["<|im_end|>", "<think>", "none of its tokens"])
    assert visible == {byte_level().token_to_id("<|im_end|>")}
    detokenizer = vocabulary.detokenizers([], True, visible)()
    assert "".join(map(detokenizer.push, ids)) == "Hi<|im_end|>"


def test_a_sliding_window_hides_special_tokens_too() -> None:
    names = ["[UNK]", "hello", "world", "[SEP]", "[CALL]"]
    tokenizer = Tokenizer(models.WordPiece({name: index for index, name in enumerate(names)}, unk_token="[UNK]"))
    tokenizer.add_special_tokens(["[SEP]", "[CALL]"])
    tokenizer.decoder = decoders.WordPiece()
    vocabulary = Vocabulary(tokenizer)
    for visible, text in (
        (frozenset[int](), "hello world"),
        (vocabulary.special_ids(["[CALL]"]), "hello world [CALL]"),
    ):
        detokenizer = vocabulary.detokenizers([], True, visible)()
        assert "".join(map(detokenizer.push, [3, 1, 3, 2, 4])) == text
