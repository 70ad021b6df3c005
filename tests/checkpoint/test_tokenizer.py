"""The thin cover over Transformers' tokenizers."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.checkpoint import CheckpointError
from engine.tokenizer import load_tokenizer
from harness.toy_model import BOS_ID, EOS_ID, PAD_ID, TOY_VOCAB_SIZE


def test_one_token_for_each_byte(toy: Path) -> None:
    tokenizer = load_tokenizer(toy)
    text = "Aé 漢\n\t\0~"
    assert tokenizer.encode(text, add_special_tokens=False) == list(text.encode())
    assert tokenizer.encode(text) == [BOS_ID, *text.encode()]
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer) == TOY_VOCAB_SIZE


def test_special_tokens(toy: Path) -> None:
    tokenizer = load_tokenizer(toy)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (BOS_ID, EOS_ID)
    assert tokenizer.all_special_ids == {BOS_ID, EOS_ID, PAD_ID}
    ids = tokenizer.encode("a</s>b")
    assert ids == [BOS_ID, 97, EOS_ID, 98]
    assert tokenizer.decode(ids) == "ab"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<s>a</s>b"


def test_half_a_character_is_a_replacement_character(toy: Path) -> None:
    assert load_tokenizer(toy).decode([97, 0xC3]) == "a\ufffd"


def test_spaces_before_punctuation_stay(toy: Path) -> None:
    tokenizer = load_tokenizer(toy)
    assert tokenizer.decode(tokenizer.encode("a , b ' s")) == "a , b ' s"


def test_the_chat_template_writes_the_special_tokens(toy: Path) -> None:
    tokenizer = load_tokenizer(toy)
    ids = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}])
    assert ids == [BOS_ID, *b"[user] hi\n[assistant] "]
    assert tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], add_generation_prompt=False) == ids[:-12]


def test_no_chat_template(toy: Path) -> None:
    (toy / "chat_template.jinja").unlink()
    with pytest.raises(CheckpointError, match="no chat template: use generate"):
        load_tokenizer(toy).apply_chat_template([{"role": "user", "content": "hi"}])


def test_no_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no tokenizer can be loaded"):
        load_tokenizer(tmp_path)
    with pytest.raises(CheckpointError, match=r"x\.gguf: no tokenizer can be loaded"):
        load_tokenizer(tmp_path / "x.gguf")
