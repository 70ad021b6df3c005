"""The tokenizer of a checkpoint: a thin cover over Transformers', without remote code."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from engine.errors import CheckpointError

__all__ = ["Tokenizer", "load_tokenizer"]


class Tokenizer:
    """What the engine needs of a tokenizer. `hf` is Transformers' own object."""

    def __init__(self, hf: Any) -> None:
        self.hf = hf
        self.eos_token_id: int | None = hf.eos_token_id
        self.bos_token_id: int | None = hf.bos_token_id
        # What decode leaves out: more than hf.all_special_ids, which has the ones with a role (bos, eos, ...) only.
        added = {i for i, token in hf.added_tokens_decoder.items() if token.special}
        self.all_special_ids: frozenset[int] = frozenset(hf.all_special_ids) | added

    def __len__(self) -> int:
        """Number of ids, the added tokens included."""
        return len(self.hf)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Ids of `text`, with the special tokens that the tokenizer puts around every text unless told otherwise."""
        return list(self.hf.encode(text, add_special_tokens=add_special_tokens))

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of `token_ids`, byte for byte: spaces before punctuation are not cleaned up."""
        text: str = self.hf.decode(list(token_ids), skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False)
        return text

    def apply_chat_template(
        self, messages: Iterable[dict[str, str]], *, add_generation_prompt: bool = True, **template_arguments: Any
    ) -> list[int]:
        """Ids of a conversation. The template writes the special tokens itself, so none are added."""
        if not self.hf.chat_template:
            raise CheckpointError("this checkpoint's tokenizer has no chat template: use generate with a plain prompt")
        text = self.hf.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=add_generation_prompt, **template_arguments
        )
        return self.encode(text, add_special_tokens=False)


def load_tokenizer(path: str | Path) -> Tokenizer:
    """From a checkpoint's directory or GGUF file. Raises `CheckpointError` if there is none or it cannot be read."""
    from transformers import AutoTokenizer

    path = Path(path)
    is_gguf = path.suffix.lower() == ".gguf" and not path.is_dir()
    directory, arguments = (path.parent, {"gguf_file": path.name}) if is_gguf else (path, {})
    try:
        hf = AutoTokenizer.from_pretrained(str(directory), trust_remote_code=False, local_files_only=True, **arguments)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise CheckpointError(f"{path}: no tokenizer can be loaded from it ({error})") from error
    return Tokenizer(hf)
