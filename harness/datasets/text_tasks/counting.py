"""Repetitions and number series: the model has to know how far it is."""

from __future__ import annotations

import random

from harness.datasets.names import Name
from harness.datasets.text_tasks.splits import Draft
from harness.datasets.text_tasks.vocabulary import ADJECTIVES, NOUNS, WORDS

__all__ = ["repetition", "series"]

MAX_VALUE = 500
MAX_TERMS = 24  # five tokens for each term of three digits
STEPS = (1, 1, 2, 2, 3, 4, 5, 5, 6, 7, 8, 9, 10, 10, 11, 12, 15, 20, 25, 50)

PER_LINE = 10
# Number of words -> the fewest and the most times, so that no answer has more than about 130 tokens.
TIMES = {1: (20, 60), 2: (10, 40), 3: (10, 30)}
REPEAT_WORD = ("Write the word {text} {times} times.", "Repeat the word {text} {times} times.", "Say {text} {times} times.")
REPEAT_PHRASE = ("Write the phrase {text} {times} times.", "Repeat the phrase {text} {times} times.")

COUNT_UP = (
    "Count from {a} to {b} by {step}.",
    "Count up from {a} to {b} in steps of {step}.",
    "Write the numbers from {a} to {b}, adding {step} each time.",
)
COUNT_DOWN = (
    "Count down from {a} to {b} by {step}.",
    "Count down from {a} to {b} in steps of {step}.",
    "Write the numbers from {a} to {b}, subtracting {step} each time.",
)
CONTINUE = ("Continue the series {given}, ... until {b}.", "Which numbers follow in {given}, ... up to and with {b}?")


def repetition(rng: random.Random, names: tuple[Name, ...]) -> Draft:
    num_words = rng.choices((1, 2, 3), (6, 3, 1))[0]
    last = rng.choice(WORDS if num_words == 1 else NOUNS)
    text = " ".join((*rng.sample(ADJECTIVES, num_words - 1), last))
    times = rng.randint(*TIMES[num_words])
    prompt = rng.choice(REPEAT_WORD if num_words == 1 else REPEAT_PHRASE).format(text=text, times=times)
    return Draft(f"{text} {times}", prompt, repeated(text, times))


def repeated(text: str, times: int) -> str:
    """Lines of ten, each closed by the total so far: `cup cup cup cup cup cup cup cup cup cup (10)`.

    A small model cannot count to 57 in a run of equal tokens, but it can attend to the token ten places back. After a total it
    needs only the prompt: a full line while the tens differ, then as many as the last digit says. A line is still a run of ten
    to thirty tokens that n-gram drafting predicts.
    """
    lines = []
    for done in range(0, times, PER_LINE):
        here = min(PER_LINE, times - done)
        lines.append(f"{f'{text} ' * here}({done + here})")
    return "\n".join(lines)


def series(rng: random.Random, names: tuple[Name, ...]) -> Draft:
    step = rng.choice(STEPS)
    room = max(rng.choice((100, 200, MAX_VALUE)), 6 * step)
    num_terms = rng.randint(6, min(MAX_TERMS, room // step))
    low = rng.randint(0, room - step * (num_terms - 1))
    terms = list(range(low, low + step * num_terms, step))
    down = rng.random() < 0.4
    if down:
        terms.reverse()
    texts = [str(term) for term in terms]
    content = f"{texts[0]} {texts[-1]} {step}"
    if rng.random() < 0.4:
        prompt = rng.choice(CONTINUE).format(given=", ".join(texts[:3]), b=texts[-1])
        return Draft(content, prompt, ", ".join(texts[3:]))
    prompt = rng.choice(COUNT_DOWN if down else COUNT_UP).format(a=texts[0], b=texts[-1], step=step)
    return Draft(content, prompt, ", ".join(texts))
