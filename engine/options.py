"""Unknown keyword arguments raise with the nearest known name, for every class of options."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, TypeVar

from engine.errors import UnknownOptionError, nearest_hint

__all__ = ["check_options", "is_int", "named_options"]

T = TypeVar("T")


def is_int(value: object) -> bool:
    """An integer that is not a bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def check_options(kind: str, given: dict[str, Any], known: set[str]) -> None:
    """Raise `UnknownOptionError` for the first key of `given` that is not in `known`."""
    for name in given:
        if name not in known:
            raise UnknownOptionError(f"{kind} has no option {name!r}.{nearest_hint(name, known)}")


def named_options(cls: type[T]) -> type[T]:
    """Class decorator for a dataclass: its constructor names the nearest field for an unknown one."""
    init = cls.__init__
    known = {field.name for field in dataclasses.fields(cls) if field.init}  # type: ignore[arg-type]

    @functools.wraps(init)
    def checked(self: T, *args: Any, **kwargs: Any) -> None:
        check_options(cls.__name__, kwargs, known)
        init(self, *args, **kwargs)

    cls.__init__ = checked  # type: ignore[method-assign, assignment]
    return cls
