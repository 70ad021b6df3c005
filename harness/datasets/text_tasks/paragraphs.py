"""Paragraphs of a small grammar, to be copied as they are or with one edit. Most of an answer stands in its prompt."""

from __future__ import annotations

import random
from typing import NamedTuple

from harness.datasets.names import Name
from harness.datasets.text_tasks.splits import Draft
from harness.datasets.text_tasks.vocabulary import ADJECTIVES, NOUNS, PREPOSITIONS, VERBS

__all__ = ["copy", "edit"]

MIN_WORDS = 12
NUMBERS = tuple(str(number) for number in range(2, 100))
# Slots: N the name, P its pronoun, V a verb, A an adjective, O a noun, R a preposition, K a number.
SENTENCES = tuple(
    tuple(sentence.split())
    for sentence in (
        "N V a A O R the O",
        "N V the A O R the A O for K days",
        "Then N V the O and the A O",
        "N V a A O and sat R the A O",
        "P V the O K times and then V a A O",
        "P V a A O R the A O on day K",
        "P sat R the O and V the A O",
        "The A O stood R the A O",
        "The O R the A O was A",
        "The A O and the O were A for K days",
    )
)
OPENING = tuple(sentence for sentence in SENTENCES if sentence[0] == "N")

COPY = ("Copy this text: {text}", "Write this text again: {text}", "Repeat these words exactly: {text}")
EDIT = {
    "word": ("Replace {old} by {new}: {text}", "Copy this with {new} for each {old}: {text}", "Write {new}, not {old}: {text}"),
    "name": ("Change the name {old} to {new}: {text}", "Copy this, but call {old} {new}: {text}"),
    "number": ("Change the number {old} to {new}: {text}", "Copy this, but make {old} a {new}: {text}"),
}


class Paragraph(NamedTuple):
    text: str
    name: Name
    words: list[str]  # its nouns and adjectives, as often as they occur
    numbers: list[str]


def copy(rng: random.Random, names: tuple[Name, ...]) -> Draft:
    text = _paragraph(rng, rng.choice(names)).text
    return Draft(text, rng.choice(COPY).format(text=text), text)


def edit(rng: random.Random, names: tuple[Name, ...]) -> Draft:
    paragraph = _paragraph(rng, rng.choice(names))
    kind = rng.choices(("word", "name", "number" if paragraph.numbers else "word"), (5, 2, 2))[0]
    if kind == "word":
        old = rng.choice(paragraph.words)  # so the more often a word occurs, the more often it is replaced
        new = _other(rng, NOUNS if old in NOUNS else ADJECTIVES, paragraph.words)
    elif kind == "name":
        old = paragraph.name.text
        new = _other(rng, [name.text for name in names if name.pronoun == paragraph.name.pronoun], [old])
    else:
        old = rng.choice(paragraph.numbers)
        new = _other(rng, NUMBERS, paragraph.numbers)
    prompt = rng.choice(EDIT[kind]).format(old=old, new=new, text=paragraph.text)
    return Draft(paragraph.text, prompt, _replaced(paragraph.text, old, new))


def _other(rng: random.Random, choices: list[str] | tuple[str, ...], taken: list[str]) -> str:
    while True:
        new = rng.choice(choices)
        if new not in taken:
            return new


def _replaced(text: str, old: str, new: str) -> str:
    return " ".join(new + word[len(old) :] if word.rstrip(".") == old else word for word in text.split(" "))


def _paragraph(rng: random.Random, name: Name) -> Paragraph:
    """One to three sentences of one person, 12 to 45 words; few different nouns and adjectives, so that some occur twice."""
    nouns = rng.sample(NOUNS, 4)
    adjectives = rng.sample(ADJECTIVES, 4)
    num_sentences = rng.choice((1, 2, 2, 3, 3))
    words: list[str] = []
    chosen: list[str] = []
    numbers: list[str] = []
    while num_sentences > 0 or len(words) < MIN_WORDS:
        noun = adjective = ""
        for slot in rng.choice(SENTENCES if words else OPENING):
            word = slot
            if slot == "N":
                word = name.text
            elif slot == "P":
                word = name.pronoun.capitalize()
            elif slot == "O":
                word = noun = _other(rng, nouns, [noun])
                chosen.append(word)
            elif slot == "A":
                word = adjective = _other(rng, adjectives, [adjective])
                chosen.append(word)
            elif slot == "V":
                word = rng.choice(VERBS)
            elif slot == "R":
                word = rng.choice(PREPOSITIONS)
            elif slot == "K":
                word = rng.choice(NUMBERS)
                numbers.append(word)
            words.append(word)
        words[-1] += "."
        num_sentences -= 1
    return Paragraph(" ".join(words), name, chosen, numbers)
