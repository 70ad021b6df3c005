"""HTML that is safe by construction: `tag` escapes every child and attribute that is not `Markup` already."""

from __future__ import annotations

import html

from reports.text import visible

__all__ = ["Markup", "join", "tag"]


class Markup(str):
    """Text that is HTML. Only this module and the plots make it."""

    __slots__ = ()


def escape(value: object) -> Markup:
    return value if isinstance(value, Markup) else Markup(html.escape(visible(str(value)), quote=True))


def join(*children: object) -> Markup:
    return Markup("".join(escape(child) for child in children if child is not None))


def tag(name: str, *children: object, **attributes: object) -> Markup:
    """`tag("a", text, href=...)`. Underscores are for names such as `class_` and `aria_label`; None leaves an attribute out."""
    shown = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"' for key, value in attributes.items() if value is not None
    )
    return Markup(f"<{name}{shown}>{join(*children)}</{name}>")
