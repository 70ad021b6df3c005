"""The real checkpoint of the zoo, against Transformers and against what is known of SmolLM2-135M-Instruct."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.checkpoint import open_checkpoint, resolve_model
from engine.tokenizer import load_tokenizer
from harness.zoo import CATALOG, available_model

MODEL = "zoo:smollm2-135m"
pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def path() -> Path:
    reason = available_model(MODEL)
    if reason is not None:
        pytest.skip(reason)
    return resolve_model(MODEL)


@pytest.fixture
def gguf_file(path: Path, tmp_path: Path) -> Path:
    """The GGUF file alone: beside tokenizer.json, Transformers would read that one."""
    name = Path(CATALOG["smollm2-135m"].member).name
    (tmp_path / name).symlink_to(path / name)
    return tmp_path / name


def test_config(path: Path) -> None:
    config = open_checkpoint(path).config
    assert (config.architecture, config.vocab_size, config.num_layers) == ("LlamaForCausalLM", 49152, 30)
    assert (config.hidden_size, config.intermediate_size, config.head_dim) == (576, 1536, 64)
    assert (config.num_heads, config.num_kv_heads) == (9, 3)
    assert (config.rms_norm_eps, config.rope_theta, config.max_position_embeddings) == (1e-5, 100000.0, 8192)
    assert (config.bos_token_id, config.eos_token_ids, config.tie_word_embeddings) == (1, (2,), True)


@pytest.mark.slow
def test_weights_are_those_of_transformers_bit_for_bit(path: Path, gguf_file: Path) -> None:
    from transformers import AutoModelForCausalLM

    directory = str(gguf_file.parent)
    plain = AutoModelForCausalLM.from_pretrained(directory, gguf_file=gguf_file.name, dtype=torch.float32).state_dict()
    written = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).state_dict()
    ours, packed = open_checkpoint(path), open_checkpoint(gguf_file)
    assert packed.config == ours.config
    assert written.keys() == plain.keys() == {*ours.names(), "lm_head.weight"}
    for name in ours.names():
        assert torch.equal(written[name], plain[name]), name
        assert torch.equal(ours.tensor(name), plain[name]), name
        assert torch.equal(packed.tensor(name), plain[name]), name


def test_tokenizer(path: Path) -> None:
    tokenizer = load_tokenizer(path)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, len(tokenizer)) == (1, 2, 49152)
    assert tokenizer.all_special_ids == set(range(17))
    assert tokenizer.hf.model_max_length == 8192
    assert tokenizer.hf.tokenize("Answer:\n\n12 apples") == ["Answer", ":", "ĊĊ", "1", "2", "Ġapples"]
    text = "She had 16 eggs — “really”.\n\n\t3 + 4 = 7 漢字"
    ids = tokenizer.encode(text)
    assert ids == tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids) == text


def test_chat_template(path: Path) -> None:
    tokenizer = load_tokenizer(path)
    ids = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}])
    assert tokenizer.decode(ids, skip_special_tokens=False) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert ids.count(1) == 3
