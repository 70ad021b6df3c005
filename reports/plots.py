"""Plots as SVG elements that take their colours from the page, so that they are right in light and in dark."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from reports.html import Markup, escape
from reports.text import visible

__all__ = ["outcome_plot", "slowest_plot"]

WIDTH = 7.0  # inches
MAX_LABEL = 42
_OUTCOMES = {"passed": "Passed", "failed": "Failed", "known": "Known defect", "skipped": "Skipped"}
# Matplotlib wants colours that it knows; each of these stands for a custom property of the page.
_STAND_INS = {
    "text": "#010203",
    "line": "#010204",
    "passed": "#010205",
    "failed": "#010206",
    "known": "#010207",
    "skipped": "#010208",
    "time": "#010209",
}


def outcome_plot(suites: pd.DataFrame) -> Markup:
    """Cases of each suite by outcome."""
    with _style():
        figure, axes = _figure(len(suites))
        left = [0.0] * len(suites)
        for name, title in _OUTCOMES.items():
            values = suites[name].to_numpy(dtype=float)
            if values.any():
                axes.barh(range(len(suites)), values, left=left, color=_STAND_INS[name], label=title, height=0.62)
                left = [a + float(b) for a, b in zip(left, values, strict=True)]
        _name_bars(axes, suites.index)
        axes.set_xlabel("cases")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=4, frameon=False, borderaxespad=0, handlelength=1)
        return _svg(figure, "Cases of each suite by outcome")


def slowest_plot(cases: pd.DataFrame, count: int = 12) -> Markup:
    """The cases that took longest."""
    slowest = cases.nlargest(count, "seconds")
    with _style():
        figure, axes = _figure(len(slowest))
        axes.barh(range(len(slowest)), slowest["seconds"].to_numpy(dtype=float), color=_STAND_INS["time"], height=0.62)
        _name_bars(axes, slowest["case"])
        axes.set_xlabel("seconds")
        return _svg(figure, f"The {len(slowest)} slowest cases")


def _name_bars(axes: Axes, names: Iterable[object]) -> None:
    """The first bar on top. Bars are placed by number, since two may have one name; a name is never a formula."""
    labels = [_label(visible(str(name))) for name in names]
    axes.set_yticks(range(len(labels)), labels, parse_math=False)
    axes.invert_yaxis()


def _label(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= MAX_LABEL else f"{text[: MAX_LABEL - 1]}…"


@contextmanager
def _style() -> Iterator[None]:
    text, line = _STAND_INS["text"], _STAND_INS["line"]
    settings = {
        "font.size": 10,
        "svg.fonttype": "none",
        "svg.hashsalt": "lockstep",
        "text.color": text,
        "axes.labelcolor": text,
        "axes.edgecolor": line,
        "xtick.color": line,
        "xtick.labelcolor": text,
        "ytick.color": line,
        "ytick.labelcolor": text,
        "grid.color": line,
    }
    with mpl.rc_context(settings):
        yield


def _figure(bars: int) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(WIDTH, 0.9 + 0.3 * max(bars, 1)), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(left=False)
    axes.grid(axis="x", linewidth=0.6)
    axes.set_axisbelow(True)
    return figure, axes


def _svg(figure: Figure, title: str) -> Markup:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    for name, colour in _STAND_INS.items():
        svg = svg.replace(colour, f"var(--{name})")
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'font: ([\d.]+)px [^;"]*', r"font: \1px system-ui, sans-serif", svg)
    # Matplotlib gives the same ids in every plot; on one page they must differ.
    prefix = re.sub(r"\W+", "-", title.lower())
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{prefix}-", svg)
    return Markup(svg.replace("<svg ", f'<svg role="img" aria-label="{escape(title)}" ', 1))
