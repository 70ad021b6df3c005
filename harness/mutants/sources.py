"""Mutants of a source file, made by mutmut's operators, and how one takes the place of the code that is already imported."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import unified_diff
from itertools import accumulate
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

__all__ = ["Mutant", "function_codes", "mutants_of", "swap_code"]

# A mutant of these fails before it says anything about the tests (as in mutmut).
TRIVIAL_CALLS = {"len", "isinstance"}


@dataclass(frozen=True)
class Mutant:
    file: str
    function: str
    """Qualified name of the outermost function; module-level lambdas have the name of what they are assigned to."""
    lines: range
    """Of the statement, in the unchanged file: tests that run none of them cannot notice."""
    source: str
    diff: str

    @property
    def before(self) -> str:
        return self._changed("-")

    @property
    def after(self) -> str:
        return self._changed("+")

    def _changed(self, sign: str) -> str:
        lines = [line[1:].strip() for line in self.diff.splitlines()[2:] if line.startswith(sign)]
        return "\n".join(line for line in lines if line)


@dataclass(frozen=True)
class _Place:
    function: tuple[str, ...] = ()
    inside: bool = False
    """In the body of a function, so that the code can be swapped later."""
    lines: range = range(0)


def mutants_of(file: str) -> Iterator[Mutant]:
    """In the order of the file. Left out are messages (`raise`, the text of an `assert`, the logger, any text of more than
    three words), annotations, defaults, decorators, docstrings, and whatever runs at import only."""
    import libcst as cst
    from libcst.metadata import MetadataWrapper, PositionProvider

    text = Path(file).read_text()
    wrapper = MetadataWrapper(cst.parse_module(text))
    module = wrapper.module
    positions = wrapper.resolve(PositionProvider)
    starts = [0, *accumulate(len(line) for line in text.splitlines(keepends=True))]
    seen = {text}
    for top in module.body:
        for old, new, place in _mutations(top, _Place(), positions):
            mutated = ""
            if old in positions:
                span = positions[old]
                start, end = starts[span.start.line - 1] + span.start.column, starts[span.end.line - 1] + span.end.column
                if module.code_for_node(old) == text[start:end]:
                    mutated = text[:start] + module.code_for_node(new) + text[end:]
            mutated = mutated or module.deep_replace(old, new).code  # parentheses, and what has no position: slow
            if mutated in seen or not _compiles(mutated, file):
                continue
            seen.add(mutated)
            diff = "\n".join(unified_diff(text.splitlines(), mutated.splitlines(), file, file, lineterm="", n=2))
            yield Mutant(file, ".".join(place.function), place.lines, mutated, diff)


def _compiles(source: str, file: str) -> bool:
    try:
        compile(source, file, "exec")
    except SyntaxError:
        return False
    return True


def _mutations(node: Any, place: _Place, positions: Any) -> Iterator[tuple[Any, Any, _Place]]:
    import libcst as cst
    from mutmut.mutation.mutators import mutation_operators

    if isinstance(node, (cst.Annotation, cst.Decorator, cst.Raise, cst.Parameters)) or _is_trivial(node) or _is_message(node):
        return
    place = _place_of(node, place, positions)
    if place.inside:
        for kind, operator in mutation_operators:
            if isinstance(node, kind):
                for new in operator(node):
                    yield node, new, place
    for child in node.children:
        if isinstance(node, cst.Assert) and child is node.msg:
            continue
        if isinstance(node, cst.FunctionDef):
            below = _Place(place.function, child is node.body, place.lines)
        elif isinstance(node, cst.Lambda):
            below = _Place(place.function, True, place.lines)
        else:
            below = place
        yield from _mutations(child, below, positions)


def _place_of(node: Any, place: _Place, positions: Any) -> _Place:
    import libcst as cst

    function = place.function
    if not place.inside:
        if isinstance(node, (cst.FunctionDef, cst.ClassDef)):
            function = (*function, node.name.value)
        elif isinstance(node, cst.Assign) and isinstance(node.targets[0].target, cst.Name):
            function = (*function, node.targets[0].target.value)
    if node not in positions:
        return _Place(function, place.inside, place.lines)
    span = positions[node]
    lines = range(span.start.line, span.end.line + 1)
    if isinstance(node, (cst.BaseSmallStatement, cst.Lambda)):
        return _Place(function, place.inside, lines)
    if isinstance(node, cst.BaseCompoundStatement):
        return _Place(function, place.inside, lines[:1])
    return _Place(function, place.inside, range(min(place.lines.start, lines.start), lines.stop) if place.lines else lines[:1])


def _is_trivial(node: Any) -> bool:
    import libcst as cst

    if not isinstance(node, cst.Call):
        return False
    if isinstance(node.func, cst.Name):
        return node.func.value in TRIVIAL_CALLS
    return isinstance(node.func, cst.Attribute) and isinstance(node.func.value, cst.Name) and node.func.value.value == "logger"


def _is_message(node: Any) -> bool:
    import libcst as cst

    return isinstance(node, cst.SimpleString) and node.value.count(" ") > 2


def function_codes(source: str, file: str) -> list[CodeType]:
    """The code of each function that module or class bodies define; inner functions are part of theirs."""

    def below(code: CodeType) -> Iterator[CodeType]:
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                if constant.co_flags & inspect.CO_OPTIMIZED:
                    yield constant
                else:
                    yield from below(constant)

    return list(below(compile(source, file, "exec", dont_inherit=True)))


def swap_code(mutant: Mutant, functions: list[FunctionType]) -> bool:
    """Put the mutated code into those functions of the module that it changes; False if there is none."""
    path = str(Path(mutant.file).resolve())
    old, new = (function_codes(source, path) for source in (Path(mutant.file).read_text(), mutant.source))
    changed = {(a.co_qualname, a.co_firstlineno): b for a, b in zip(old, new, strict=True) if _behaviour(a) != _behaviour(b)}
    swapped = False
    for function in functions:
        code = function.__code__
        if code.co_filename == path and (code.co_qualname, code.co_firstlineno) in changed:
            function.__code__ = changed[code.co_qualname, code.co_firstlineno]
            swapped = True
    return swapped


def _behaviour(code: CodeType) -> tuple[object, ...]:
    """Without line numbers, since a mutant may be shorter than what it replaces."""
    constants = tuple(_behaviour(c) if isinstance(c, CodeType) else (type(c), c) for c in code.co_consts)
    return code.co_code, constants, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, code.co_exceptiontable
