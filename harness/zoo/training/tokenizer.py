"""Trains the byte-level BPE tokenizer of the zoo's own models. The same texts give the same files."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from harness.zoo.writer import write_json

__all__ = ["BOS", "CHAT_TEMPLATE", "EOS", "PAD", "train_tokenizer"]

BOS, EOS, PAD = "<s>", "</s>", "<pad>"  # ids 0, 1 and 2
# Qwen2's, so each digit is a token and a space before a number is one of its own.
PRE_TOKEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}{{ ' ' + message['content'] }}"
    "{% else %}{% if not loop.first %}{{ '\\n\\n' }}{% endif %}"
    "{{ 'Question: ' + message['content'] + '\\nAnswer:' }}{% endif %}"
    "{% endfor %}"
)


def train_tokenizer(texts: Iterable[str], directory: Path, *, vocab_size: int = 1024, context_length: int = 1024) -> None:
    """Write tokenizer.json, tokenizer_config.json and the chat template into `directory`, which need not exist."""
    from transformers import PreTrainedTokenizerFast

    backend = _train(texts, vocab_size)
    hf: Any = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        model_max_length=context_length,
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )
    hf.chat_template = CHAT_TEMPLATE
    directory.mkdir(parents=True, exist_ok=True)
    hf.save_pretrained(str(directory))
    config_file = directory / "tokenizer_config.json"
    config = json.loads(config_file.read_text(encoding="utf-8"))
    config["tokenizer_class"] = "PreTrainedTokenizerFast"  # the name that Transformers 4 knows too
    config["clean_up_tokenization_spaces"] = False
    write_json(config_file, config)


def _train(texts: Iterable[str], vocab_size: int) -> Any:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PRE_TOKEN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[BOS, EOS, PAD],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    backend.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A {BOS} $B", special_tokens=[(BOS, backend.token_to_id(BOS))]
    )
    return backend
