"""Text of a growing list of ids, without ever decoding the whole of it again."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Detokenizer", "NoDetokenizer"]

REPLACEMENT = "\ufffd"  # what a decoder gives for a character whose bytes are not all there yet
CONTEXT_TOKENS = 4


class Detokenizer:
    """Incremental decoding: the text after `flush` equals decoding all ids at once.

    A tail that ends in the replacement character may be half of a character, so it waits until it is complete or `flush` comes.
    Decoding starts from the last place where the text was complete, and the ids before it serve as context (some tokenizers
    drop a leading space).
    """

    def __init__(self, decode: Callable[[list[int]], str], context_ids: list[int]) -> None:
        self._decode = decode
        context = context_ids[-CONTEXT_TOKENS:]  # the end of the prompt, unless it breaks off inside a character
        self._ids = [] if decode(context).endswith(REPLACEMENT) else context
        self._context_start = 0
        self._read = len(self._ids)  # ids before this are in the text
        self.text = ""

    def feed(self, token_id: int) -> None:
        self._ids.append(token_id)
        self._advance(final=False)

    def flush(self) -> None:
        """Take a tail that will never be completed into the text."""
        self._advance(final=True)

    def cut(self, length: int) -> None:
        self.text = self.text[:length]

    def _advance(self, final: bool) -> None:
        before = self._decode(self._ids[self._context_start : self._read])
        now = self._decode(self._ids[self._context_start :])
        if len(now) <= len(before) or (now.endswith(REPLACEMENT) and not final):
            return
        self.text += now[len(before) :]
        self._context_start, self._read = self._read, len(self._ids)


class NoDetokenizer(Detokenizer):
    """For requests without text."""

    def __init__(self) -> None:
        super().__init__(lambda ids: "", [])

    def feed(self, token_id: int) -> None:
        pass

    def flush(self) -> None:
        pass
