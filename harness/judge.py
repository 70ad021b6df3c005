"""What becomes of an oracle's verdict: raised at once, or collected, to see which oracles catch what."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from harness.errors import ValidationError
from harness.replay import Replay

__all__ = ["Judge"]


class Judge:
    """`with judge: assert_...` around every oracle."""

    def __init__(self, *, collects: bool = False) -> None:
        self.collects = collects
        self.verdicts: list[ValidationError] = []

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        if isinstance(error, ValidationError):
            self.verdicts.append(error)
            return self.collects
        return False

    @contextmanager
    def for_replay(self, replay: Replay) -> Iterator[None]:
        """Every failure inside carries the case, so that it can be written to a file."""
        try:
            yield
        except ValidationError as error:
            error.replay = replay.after(error)
            raise
