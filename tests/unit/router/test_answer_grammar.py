"""What the grammar of a whole answer takes: reasoning before a structure, and calls in its place."""

from __future__ import annotations

import functools
import json

import pytest
from tokenizers import AddedToken, Tokenizer

from services.router.chat.answer_grammar import AnswerForm, Tags
from services.router.chat.forms import REASONING_FORMS, THINK
from services.router.chat.parsers.reasoning import ReasoningForm
from services.router.grammar.structure import Structure, StructureKind
from shared.grammar import compile_grammar
from tests.integration.router.small_tokenizers import EOS_TOKEN_ID, byte_level

SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"], "additionalProperties": False}
STRUCTURES = {
    Structure(StructureKind.JSON_SCHEMA, json.dumps(SCHEMA), ""): '{"x": 1}',
    Structure(StructureKind.REGEX, "ab|c", ""): "ab",
    Structure(StructureKind.CHOICE, '["yes", "no, 日本"]', ""): "no, 日本",
    Structure(StructureKind.GRAMMAR, '%ignore / +/\nstart: "(" start ")" | "x"', ""): "( (x ))",
    Structure(StructureKind.GRAMMAR, 'root ::= "(" root ")" | "x"', ""): "((x))",
}
X = next(iter(STRUCTURES))


@functools.cache
def tokenizer() -> Tokenizer:
    """With tags that are special tokens (Mistral's) and tags that are tokens like others (Qwen's)."""
    with_tags = Tokenizer.from_str(byte_level().to_str())
    with_tags.add_special_tokens(["[THINK]", "[/THINK]"])
    with_tags.add_tokens([AddedToken("</think>", special=False)])
    return with_tags


def tags_of(form: ReasoningForm, are_tokens: bool) -> Tags:
    ids = {tag: tokenizer().token_to_id(tag) for tag in form.tokens} if are_tokens else {}
    return Tags({tag: token_id for tag, token_id in ids.items() if token_id is not None})


def ids_of(text: str, tags_are_tokens: bool = True) -> list[int]:
    """`tags_are_tokens`: otherwise they are spelled."""
    if tags_are_tokens:
        return list(tokenizer().encode(text, add_special_tokens=False).ids)
    return [token_id for char in text for token_id in tokenizer().encode(char, add_special_tokens=False).ids]


def accepts(form: AnswerForm, structure: Structure, token_ids: list[int]) -> bool:
    from llguidance import LLTokenizer

    library = LLTokenizer(tokenizer().to_str(), tokenizer().get_vocab_size(), [EOS_TOKEN_ID])
    matcher = compile_grammar(form.around(structure.to_grammar()), library)
    return bool(matcher.try_consume_tokens(token_ids) == len(token_ids) and matcher.is_accepting())


@pytest.mark.parametrize("name", ["think", "mistral"])
@pytest.mark.parametrize("structure", STRUCTURES)
def test_reasoning_may_stand_before_any_structure(name: str, structure: Structure) -> None:
    reasoning, answer = REASONING_FORMS[name], STRUCTURES[structure]
    form = AnswerForm(tags_of(reasoning, True), reasoning)
    begin, end = reasoning.tokens
    long = f'{begin}\nHm: {{"y": 1}} <b>👋🏽</b>\n{end}\n\n{answer}'
    for text in (answer, f"{begin}{end}{answer}", long, f"\n{begin}x{end}{answer}"):
        assert accepts(form, structure, ids_of(text)), text
    for text in (f"Hm.{end}{answer}", f"{begin}Hm. {answer}", f"{begin}Hm.{end}Well, {answer}", f"{begin}Hm.{end}"):
        assert not accepts(form, structure, ids_of(text)), text


def test_reasoning_may_be_marked_with_several_spellings() -> None:
    reasoning = REASONING_FORMS["granite"]
    form = AnswerForm(tags_of(reasoning, True), reasoning)
    for begin in reasoning.begins:
        for end in reasoning.ends:
            assert accepts(form, X, ids_of(f'{begin} Hm. Here is my {end}\n\n{{"x": 1}}'))
            assert not accepts(form, X, ids_of(f'{begin} Hm. {end} So: {end} {{"x": 1}}'))
    assert accepts(form, X, ids_of('{"x": 1}'))


@pytest.mark.parametrize("name", ["deepseek_r1", "mistral"])
def test_where_the_prompt_has_begun_reasoning_the_answer_begins_with_it(name: str) -> None:
    reasoning = REASONING_FORMS[name]
    form = AnswerForm(tags_of(reasoning, True), reasoning, is_inside=True)
    begin, end = reasoning.tokens
    for text in ('Hm.{end}\n{{"x": 1}}', '{end}{{"x": 1}}', '{begin}Hm.{end}{{"x": 1}}', '{{"x": 2}} {end}{{"x": 1}}'):
        assert accepts(form, X, ids_of(text.format(begin=begin, end=end))), text
    assert not accepts(form, X, ids_of('{"x": 1}'))


@pytest.mark.parametrize("is_inside", [False, True])
@pytest.mark.parametrize("are_tokens", [False, True])
def test_tags_that_are_spelled_are_tags_all_the_same(are_tokens: bool, is_inside: bool) -> None:
    """What reads the answer cannot tell them from tokens."""
    form = AnswerForm(tags_of(THINK, are_tokens), THINK, is_inside)
    start = "" if is_inside else "<think>"
    assert accepts(form, X, ids_of(f'{start}Hm </thin> </think>\n\n{{"x": 1}}', tags_are_tokens=False))
    assert not accepts(form, X, ids_of(f'{start}Hm </think>So: </think>{{"x": 1}}', tags_are_tokens=False))
    if are_tokens:
        for text in ("Hm </think>", "Hm </think>So: "):
            spelled = ids_of(f"{start}{text}", tags_are_tokens=False)
            assert not accepts(form, X, [*spelled, *ids_of('</think>{"x": 1}')])


def test_a_structure_with_nothing_around_it_is_its_own_grammar() -> None:
    assert AnswerForm(Tags({})).around(X.to_grammar()) == X.to_grammar()
