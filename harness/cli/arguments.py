"""Arguments that several commands share: models, options as NAME=VALUE, prompts, JSON output."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from engine import SamplingParams
from engine.tokenizer import Tokenizer

__all__ = [
    "add_json",
    "add_model",
    "add_prompts",
    "add_sampling",
    "human_output",
    "named_values",
    "positive",
    "read_prompts",
    "sampling_from",
    "write_json",
]


def add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", required=True, help="a directory, a GGUF file, a Hugging Face id or a zoo: name")


def add_prompts(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--prompt", action="append", default=[], metavar="TEXT", help="a prompt; may be repeated")
    parser.add_argument(
        "--prompts",
        metavar="FILE",
        help="a text file with a prompt on each line, or JSON Lines with the field prompt or question",
    )
    parser.add_argument("--limit", type=int, metavar="N", help="take the first N prompts only")
    parser.add_argument("--chat", action="store_true", help="put each prompt through the checkpoint's chat template")


def add_sampling(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--sampling",
        nargs="*",
        default=[],
        metavar="NAME=VALUE",
        help="fields of SamplingParams (default: temperature=0 max_tokens=64)",
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", metavar="FILE", help="write the result as JSON too (- for standard output)")


def positive(text: str) -> int:
    """For argparse: an integer of at least 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return value


def named_values(pairs: Sequence[str]) -> dict[str, Any]:
    """`["a=1", "b=x"]` -> {"a": 1, "b": "x"}; a value is JSON where it can be read as such, else the text itself."""
    values = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise ValueError(f"{pair!r} is not NAME=VALUE, such as max_num_seqs=4.")
        try:
            values[name] = json.loads(text)
        except json.JSONDecodeError:
            values[name] = {"True": True, "False": False, "None": None}.get(text, text)
    return values


def sampling_from(arguments: argparse.Namespace) -> SamplingParams:
    return SamplingParams(**{"temperature": 0, "max_tokens": 64} | named_values(arguments.sampling))


def read_prompts(arguments: argparse.Namespace, tokenizer: Tokenizer) -> list[list[int]]:
    """Token ids of every prompt that the arguments name; `ValueError` if there is none."""
    texts = list(arguments.prompt)
    if arguments.prompts:
        texts += _texts_of(Path(arguments.prompts))
    texts = texts[: arguments.limit]
    if not texts:
        raise ValueError("there is no prompt; give --prompt TEXT or --prompts FILE.")
    if arguments.chat:
        return [tokenizer.apply_chat_template([{"role": "user", "content": text}]) for text in texts]
    return [tokenizer.encode(text) for text in texts]


def _texts_of(path: Path) -> list[str]:
    try:
        content = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: is not UTF-8 text ({error}).") from error
    # NOTE: str.splitlines would also split at U+2028, which may stand inside a JSON string.
    lines = [(number, line.rstrip("\r")) for number, line in enumerate(content.split("\n"), start=1) if line.strip()]
    if path.suffix != ".jsonl":
        return [line for _, line in lines]
    return [_text_of_row(line, f"{path}, line {number}") for number, line in lines]


def _text_of_row(line: str, where: str) -> str:
    try:
        row = json.loads(line)
        text = row["prompt"] if "prompt" in row else row["question"]
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{where}: expected an object with the field prompt or question.") from error
    if not isinstance(text, str):
        raise ValueError(f"{where}: the prompt must be text, got {text!r}.")
    return text


def human_output(arguments: argparse.Namespace) -> TextIO:
    """Where the text for people goes: standard error where standard output carries the JSON."""
    return sys.stderr if arguments.json == "-" else sys.stdout


def write_json(target: str | None, result: Any) -> None:
    if target == "-":
        print(json.dumps(result, indent=2))
    elif target:
        Path(target).write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
