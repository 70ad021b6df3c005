"""Questions of GSM8K (openai/grade-school-math, MIT): from `LOCKSTEP_GSM8K_DIR`, else from the Hugging Face hub, else our own.

The data set itself is not part of this repository. Without it the cases on a real checkpoint still run, on the questions below,
and their records say so.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Questions", "load_gsm8k", "load_questions"]

_FILES = {"test": "main/test-00000-of-00001.parquet", "train": "main/train-00000-of-00001.parquet"}  # in the hub's data set


@dataclass(frozen=True)
class Questions:
    source: str
    texts: tuple[str, ...]


def load_gsm8k(split: str = "test") -> list[dict[str, str]]:
    """All problems of a split, each with `question` and `answer`. `FileNotFoundError` says how to provide them."""
    if split not in _FILES:
        raise ValueError(f"GSM8K has the splits test and train, not {split!r}.")
    directory = os.environ.get("LOCKSTEP_GSM8K_DIR")
    if directory:
        path = Path(directory) / f"{split}.jsonl"
        if not path.is_file():
            raise FileNotFoundError(
                f"LOCKSTEP_GSM8K_DIR={directory} has no {split}.jsonl; point it at the data set's directory."
            )
        with path.open(encoding="utf-8") as lines:
            return [json.loads(line) for line in lines]
    return _from_hub(split)


def _from_hub(split: str) -> list[dict[str, str]]:
    import pandas
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        path = hf_hub_download("openai/gsm8k", _FILES[split], repo_type="dataset")
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise FileNotFoundError(
            "GSM8K is not here and the hub cannot be reached; set LOCKSTEP_GSM8K_DIR to a directory with its *.jsonl files."
        ) from error
    table = pandas.read_parquet(path)
    return [{"question": str(q), "answer": str(a)} for q, a in zip(table["question"], table["answer"], strict=True)]


def load_questions() -> Questions:
    """GSM8K's test questions where `LOCKSTEP_GSM8K_DIR` has them, else our own; never asks the network."""
    if os.environ.get("LOCKSTEP_GSM8K_DIR"):
        return Questions("gsm8k/test", tuple(problem["question"] for problem in load_gsm8k("test")))
    return Questions("embedded", OWN_QUESTIONS)


OWN_QUESTIONS = (
    "A baker fills 14 trays with 9 rolls each and sells 87 rolls before noon. How many rolls are left for the afternoon?",
    "Nadia saves $6 a week. After 11 weeks she buys a lamp for $48. How much money does she have then?",
    "A bus starts with 23 people. At the first stop 8 get on and 5 get off, at the second 12 get off. How many are on it now?",
    "Three friends share 45 marbles so that each has 4 more than the one before. How many does the first one have?",
    "A tank holds 240 litres. A pump fills 16 litres a minute, and a leak loses 4. After how many minutes is it full?",
    "Omar reads 12 pages on Monday and twice as many on each of the next two days. The book has 100 pages. How many are left?",
    "A ticket costs $18 for an adult and half of that for a child. What do 2 adults and 5 children pay together?",
    "A field is 35 metres long and 20 metres wide. How long is a fence around it if a gate of 3 metres is left open?",
    "Of 60 eggs, a quarter are brown, and a third of the rest are cracked. How many white eggs are whole?",
    "A train leaves at 9:40 and arrives at 13:15. It stands still for 25 minutes on the way. How long does it move?",
    "Ivo has twice as many coins as Mara, and together they have 72. He gives her 9. How many does she have now?",
    "A shop sells pens in packs of 8 for $5. What do 56 pens cost, if every seventh pack is free?",
)
