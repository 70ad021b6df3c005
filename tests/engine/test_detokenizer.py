"""Incremental text equals decoding everything at once, whatever the bytes are."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.detokenizer import Detokenizer, NoDetokenizer
from engine.tokenizer import Tokenizer, load_tokenizer
from harness.toy_model import toy_model_path

SPECIAL = st.integers(256, 258)
# Characters of one to four bytes, pieces of them, bytes that begin nothing, special tokens, the replacement character itself.
pieces = st.one_of(
    st.sampled_from(["a", " ", "é", "€", "𝄞", "\ufffd", "\u200d"]).map(lambda c: list(c.encode())),
    st.sampled_from([[0xE2], [0x82], [0xAC], [0xF0, 0x9D], [0xFF], [0xC0, 0x80], [0xED, 0xA0, 0x80]]),
    SPECIAL.map(lambda i: [i]),
    st.integers(0, 255).map(lambda i: [i]),
)
ids = st.lists(pieces, max_size=12).map(lambda parts: [token for part in parts for token in part])


@pytest.fixture(scope="module")
def toy() -> Tokenizer:
    return load_tokenizer(toy_model_path())


def make(tokenizer: Tokenizer, prompt: list[int], skip: bool) -> Detokenizer:
    return Detokenizer(lambda tokens: tokenizer.decode(tokens, skip_special_tokens=skip), context_ids=prompt)


@settings(max_examples=250, deadline=None)
@given(output=ids, skip=st.booleans())
def test_the_text_is_that_of_all_ids(toy: Tokenizer, output: list[int], skip: bool) -> None:
    detokenizer = make(toy, [], skip)
    for token in output:
        before = detokenizer.text
        detokenizer.feed(token)
        assert detokenizer.text.startswith(before), "text that was given out does not change"
    detokenizer.flush()
    assert detokenizer.text == toy.decode(output, skip_special_tokens=skip)


@settings(max_examples=150, deadline=None)
@given(prompt=st.text(max_size=6).map(lambda text: list(text.encode())), output=ids)
def test_a_whole_prompt_leaves_the_text_alone(toy: Tokenizer, prompt: list[int], output: list[int]) -> None:
    """The last ids of the prompt are context only; a byte-level tokenizer does not need it and must not be misled by it."""
    detokenizer = make(toy, prompt, True)
    for token in output:
        detokenizer.feed(token)
    detokenizer.flush()
    assert detokenizer.text == toy.decode(output)


@settings(max_examples=100, deadline=None)
@given(prompt=ids, output=ids)
def test_a_prompt_that_breaks_off_is_no_context(toy: Tokenizer, prompt: list[int], output: list[int]) -> None:
    detokenizer = make(toy, [*prompt, 0xE2, 0x82], True)
    for token in output:
        detokenizer.feed(token)
    detokenizer.flush()
    assert detokenizer.text == toy.decode(output)


def test_a_character_waits_for_its_last_byte(toy: Tokenizer) -> None:
    detokenizer = make(toy, [], True)
    seen = []
    for token in "a€b".encode():
        detokenizer.feed(token)
        seen.append(detokenizer.text)
    assert seen == ["a", "a", "a", "a€", "a€b"]


def test_flush_gives_what_will_never_be_complete(toy: Tokenizer) -> None:
    detokenizer = make(toy, [], True)
    for token in [97, 0xE2, 0x82]:
        detokenizer.feed(token)
    assert detokenizer.text == "a"
    detokenizer.flush()
    assert detokenizer.text == toy.decode([97, 0xE2, 0x82]) == "a\ufffd"
    detokenizer.flush()
    assert detokenizer.text == "a\ufffd", "a second flush adds nothing"


def test_a_leading_space_survives_where_the_tokenizer_drops_it() -> None:
    """Word-level decoders (Metaspace) drop the space of the first token: the prompt's end is the context that keeps it."""

    def decode(tokens: list[int]) -> str:
        return "".join(f" w{token}" for token in tokens)[1:]

    detokenizer = Detokenizer(decode, context_ids=[1, 2])
    for token in (3, 4, 5):
        detokenizer.feed(token)
    assert detokenizer.text == " w3 w4 w5"


def test_cut_shortens_the_text(toy: Tokenizer) -> None:
    detokenizer = make(toy, [], True)
    for token in b"abc":
        detokenizer.feed(token)
    detokenizer.cut(1)
    assert detokenizer.text == "a"


def test_without_text_nothing_is_decoded() -> None:
    detokenizer = NoDetokenizer()
    detokenizer.feed(5)
    detokenizer.flush()
    assert detokenizer.text == ""
