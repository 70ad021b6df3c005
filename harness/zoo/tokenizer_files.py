"""The tokenizer inside a GGUF file, written as the files that Transformers and the tokenizers library read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from engine.tokenizer import load_tokenizer
from harness.zoo.writer import write_json

__all__ = ["write_tokenizer"]

# What from_pretrained was called with is no fact about the tokenizer.
CALL_ARGUMENTS = ("is_local", "local_files_only")


def write_tokenizer(gguf: Path, directory: Path, *, context_length: int, single_digits: bool) -> None:
    """Write tokenizer.json, tokenizer_config.json and the chat template of `gguf` into `directory`.

    With `single_digits`, text is split around each digit before anything else, as in the tokenizer that the model was trained
    with; Transformers' conversion leaves this step out, which changes the ids of white space before a digit ("a:\\n\\n1").
    """
    hf: Any = load_tokenizer(gguf).hf
    if single_digits:
        _split_digits_first(hf.backend_tokenizer)
    hf.model_max_length = context_length
    hf.save_pretrained(str(directory))
    config_file = directory / "tokenizer_config.json"
    config = json.loads(config_file.read_text(encoding="utf-8"))
    for name in CALL_ARGUMENTS:
        config.pop(name, None)
    # The name that Transformers 4 knows too; both versions read the whole pipeline from tokenizer.json.
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    config["clean_up_tokenization_spaces"] = False
    write_json(config_file, config)


def _split_digits_first(backend: Any) -> None:
    from tokenizers import pre_tokenizers

    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    )
