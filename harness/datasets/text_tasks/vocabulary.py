"""The words of the text tasks: few, short, common, so that a vocabulary of 1,024 tokens has most of them whole."""

from __future__ import annotations

__all__ = ["ADJECTIVES", "COLORS", "NOUNS", "PLACES", "PREPOSITIONS", "VERBS", "WORDS"]


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


NOUNS = _words(
    """
    apple ball bank barn bear bed bell bird boat book boot bottle box bread bridge brush bus cake camera candle car cat chair
    cheese clock cloud coat corn cow crab crown cup deck desk dish dog door drum duck farm fence field fish flag flower fork
    fox frog garden gate glass goat hat hen hill horse house jar key kite lake lamp leaf map milk mirror moon mouse nail nest
    net nut pan park pen phone pig plate pond pot radio river road rock roof room rope seed shell ship shoe shop song spoon
    stone street sun table tent tower train tree truck wall watch window
    """
)
COLORS = ("red", "blue", "green", "black", "white", "brown", "gray", "pink")
# None begins with a vowel sound: "a" fits before each.
ADJECTIVES = (
    *COLORS,
    *_words(
        "big small long short tall round flat heavy light new clean dry wet warm cold soft hard fast slow loud quiet cheap"
    ),
)
VERBS = _words("saw found moved washed painted carried watched liked wanted sold bought hid lost kept followed pulled")
PREPOSITIONS = ("near", "behind", "under", "beside", "before", "by")
PLACES = ("Oslo", "Rome", "Lima", "Cairo", "Delhi", "Paris", "Quito", "Tokyo")

WORDS = NOUNS + ADJECTIVES + VERBS  # what lists are made of
