"""Ctrl-C never falls into the middle of planning or committing: it waits until the books are written."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["Interrupts"]


class Interrupts:
    """Holds off SIGINT in the main thread, where Python delivers it; a handler of the user's own is left alone."""

    def __init__(self) -> None:
        self._pending = False

    @contextmanager
    def held_off(self) -> Iterator[None]:
        is_main = threading.current_thread() is threading.main_thread()
        if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            yield
            return
        signal.signal(signal.SIGINT, self._remember)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def raise_pending(self) -> None:
        """Raise `KeyboardInterrupt` now if one came while they were held off."""
        if self._pending:
            self._pending = False
            raise KeyboardInterrupt

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self._pending = True
