"""First names for generated tasks, in one pool for each split: a model never trains on a name that it is tested with."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from harness.datasets.example import Example

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Name:
    text: str
    pronoun: str  # "she" or "he"


def _pool(she: str, he: str) -> tuple[Name, ...]:
    """Alternates the two lists, so that any prefix of a pool is balanced."""
    pairs = zip(she.split(), he.split(), strict=True)
    return tuple(name for a, b in pairs for name in (Name(a, "she"), Name(b, "he")))


NAMES: Mapping[str, tuple[Name, ...]] = MappingProxyType(
    {
        "train": _pool(
            she="""
            Anna Maria Rosa Emma Lily Nora Sara Ella Mia Zoe Ava Eva Ines Lena Mina Hana Yuki Aiko Mei Ling
            Priya Asha Leila Amina Fatima Zara Aisha Imani Nia Ada Ruth Grace Hope Joy Clara Julia Lucy Alice Jane Kate
            Laura Linda Molly Sophie Elsa Freya Ingrid Olga Vera Irina Bianca Carla Elena Gloria Paula Marta Tina
            Wendy Paige Noor
            """,
            he="""
            Ben Tom Sam Max Leo Jack Luke Adam Noah Owen Ivan Omar Ali Hassan Karim Yusuf Ravi Arjun Kofi Kwame
            Juan Carlos Diego Pedro Luis Marco Paolo Hugo Felix Oscar Erik Lars Sven Otto Karl Peter Paul Mark John James
            David Daniel Henry George Frank Simon Victor Walter Kenji Hiro Jin Wei Chen Tariq Samir Pavel
            Boris Milan Andre Louis
            """,
        ),
        "validation": _pool(
            she="Nina Lara Dina Esther Keiko Anita Salma Helen Diana Chloe Agnes Yara",
            he="Dan Rob Tim Jorge Amir Ken Felipe Emil Rafael Bruno Kamal Anders",
        ),
        "test": _pool(
            she="Iris Maya Tara Petra Naomi Sofia Hilda Carmen Lucia Amy Beth Donna Farah Gina Kira Mona Rita Sana Uma Thea",
            he="Alan Bob Carl Dev Eli Finn Gus Hamid Ian Jon Kai Liam Mateo Nico Pablo Raj Seth Theo Vik Ahmed",
        ),
    }
)


_TRAINED = re.compile(r"\b(" + "|".join(name.text for name in NAMES["train"]) + r")\b")
_TAKEN = frozenset(name.text for pool in NAMES.values() for name in pool)
CONSONANTS, VOWELS = "bcdfghjklmnprstvwyz", "aeiou"


def made_up_name(rng: random.Random) -> str:
    """Two or three syllables; none of the names of any split."""
    while True:
        syllables = "".join(rng.choice(CONSONANTS) + rng.choice(VOWELS) for _ in range(rng.choice((1, 2, 2))))
        name = (syllables + rng.choice((rng.choice(CONSONANTS), "", rng.choice(VOWELS)))).capitalize()
        if len(name) > 2 and name not in _TAKEN:
            return name


def with_made_up_names(rng: random.Random, example: Example) -> Example:
    """The same example about people with made-up names, the same one wherever a name of training stood."""
    found = dict.fromkeys(_TRAINED.findall(example.prompt))
    if not found:
        return example
    others = {name: made_up_name(rng) for name in found}

    def swapped(text: str) -> str:
        return _TRAINED.sub(lambda match: others.get(match[0], match[0]), text)

    return replace(example, prompt=swapped(example.prompt), answer=swapped(example.answer))
