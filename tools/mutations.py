"""Mutants of a module: what its functions would be with one small mistake in them.

Each mutant replaces one expression or statement of a function, a method or a lambda by another. Left alone are
annotations, decorators, defaults, assertions, whatever is run when the module is imported, and texts: most are names of
columns, without which nothing runs, or sentences for people.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

_OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq},
    **{ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And},
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult},
    **{ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.LShift: ast.RShift},
    **{ast.RShift: ast.LShift, ast.Break: ast.Continue, ast.Continue: ast.Break},
}
_PAIRS = (
    *(("min", "max"), ("any", "all"), ("first", "last"), ("lstrip", "rstrip"), ("startswith", "endswith")),
    *(("min_horizontal", "max_horizontal"), ("any_horizontal", "all_horizontal"), ("removeprefix", "removesuffix")),
)
_NAMES = dict(_PAIRS) | {second: first for first, second in _PAIRS}
# What is passed to these by keyword decides what they choose, or in which order.
_CHOOSING = ("min", "max", "sorted", "sort")
_CONDITIONS = (ast.If, ast.IfExp, ast.While, ast.comprehension)
# Fields of nodes that are evaluated when a function is defined, or never.
_UNTOUCHED = ("decorator_list", "args", "annotation", "returns", "type_params", "ctx")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


@dataclass(frozen=True)
class Mutant:
    """`old` becomes `new` in a function of a module; `nth`: which of several such places in it, from 1 on.

    `lines`: those of its statement. A test that runs none of them cannot notice it.
    """

    module: str
    function: str
    old: str
    new: str
    nth: int
    lines: range

    @property
    def identity(self) -> tuple[str, str, str, str, int]:
        """What names it: the same as long as its function has the same expressions."""
        return self.module, self.function, self.old, self.new, self.nth

    def __str__(self) -> str:
        place = "" if self.nth == 1 else f" (the {self.nth}. of these)"
        return f"{self.module}:{self.lines.start} {self.function}: {self.old} -> {self.new}{place}"


@dataclass(frozen=True)
class _Place:
    """A node in its tree. `function`: the qualified name of the one that has it; empty outside of all."""

    node: ast.AST
    owner: ast.AST
    field: str
    index: int | None
    function: str
    lines: range

    def put(self, node: ast.AST) -> None:
        if self.index is None:
            setattr(self.owner, self.field, node)
        else:
            getattr(self.owner, self.field)[self.index] = node


class Mutations:
    """All mutants of a module's source. Raises SyntaxError where it is none."""

    def __init__(self, module: str, source: str, path: str) -> None:
        self._path, self._tree = path, ast.parse(source)
        self._changes: dict[Mutant, tuple[_Place, ast.AST]] = {}
        times: Counter[tuple[str, str, str]] = Counter()
        for place in _places(self._tree, "", "", range(0)):
            for new in _variants(place) if place.function else ():
                texts = place.function, ast.unparse(place.node), ast.unparse(new)
                times[texts] += 1
                mutant = Mutant(module, *texts, times[texts], place.lines)
                # A copy: it may be a part of the place's own node, which stays where it is.
                located = ast.copy_location(copy(new), place.node)
                self._changes[mutant] = place, ast.fix_missing_locations(located)

    @property
    def mutants(self) -> list[Mutant]:
        """In the order of the source."""
        return [*self._changes]

    def code(self, mutant: Mutant | None = None) -> CodeType:
        """The module compiled with this mutant; with none, as it is."""
        with self._applied(mutant):
            return compile(self._tree, self._path, "exec", dont_inherit=True)

    @contextmanager
    def _applied(self, mutant: Mutant | None) -> Iterator[None]:
        if mutant is None:
            yield
            return
        place, new = self._changes[mutant]
        place.put(new)
        try:
            yield
        finally:
            place.put(place.node)


def replace_code(functions: Sequence[FunctionType], old: CodeType, new: CodeType) -> None:
    """Let functions whose code is somewhere in `old` have what is in its place in `new`.

    A function that another one has returned stays as it is where the mutant has it close over other names. Raises
    ValueError where no function has the code that the mutant changes.
    """
    changed = {one: other for one, other in _pairs(old, new) if one != other}
    found = [one for one in functions if one.__code__ in changed]
    if not found:
        raise ValueError(f"No function of {old.co_filename} has the code that the mutant changes.")
    for function in found:
        code = changed[function.__code__]
        if len(code.co_freevars) == len(function.__code__.co_freevars):
            function.__code__ = code


def _pairs(old: CodeType, new: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """The code of each function in both, in their order."""
    inner = [[one for one in code.co_consts if isinstance(one, CodeType)] for code in (old, new)]
    if len(inner[0]) != len(inner[1]):  # a lambda is gone: the function that had it is another one
        return
    for one, other in zip(*inner, strict=True):
        yield one, other
        yield from _pairs(one, other)


def _places(owner: ast.AST, scope: str, function: str, lines: range) -> Iterator[_Place]:
    """Every node below this one that may be replaced, the outer before the inner."""
    for field, value in ast.iter_fields(owner):
        if field in _UNTOUCHED and not (field == "args" and isinstance(owner, ast.Call)):
            continue
        for index, node in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if not isinstance(node, ast.AST) or isinstance(node, ast.Assert) or _is_check(node):
                continue
            of_node = _own_lines(node) if isinstance(node, ast.stmt) else lines
            yield _Place(node, owner, field, index, function, of_node)
            name = f"{scope}{getattr(node, 'name', '<lambda>')}"
            if isinstance(node, _FUNCTIONS):
                inner = function if function and isinstance(node, ast.Lambda) else name
                yield from _places(node, f"{inner}.", inner, of_node)
            else:
                within = f"{name}." if isinstance(node, ast.ClassDef) else scope
                yield from _places(node, within, function, of_node)


def _is_check(node: ast.AST) -> bool:
    """Whether this argument only makes sure that two things are equally long, which no test may break."""
    return isinstance(node, ast.keyword) and node.arg == "strict"


def _own_lines(statement: ast.stmt) -> range:
    """The lines of a statement, without those of the statements in it."""
    body = getattr(statement, "body", None)
    last = body[0].lineno - 1 if body else statement.end_lineno or statement.lineno
    return range(statement.lineno, max(last, statement.lineno) + 1)


def _variants(place: _Place) -> Iterator[ast.AST]:
    """What may stand in this node's place."""
    node, owner = place.node, place.owner
    if isinstance(owner, _CONDITIONS) and place.field in ("test", "ifs"):
        if not isinstance(owner, ast.While):
            yield ast.Constant(True)
        yield ast.Constant(False)
    if isinstance(owner, ast.Return) and not (isinstance(node, ast.Constant) and node.value is None):
        yield ast.Constant(None)
    yield from _other_operators(node)
    match node:
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield ast.Constant(value + 1)
        case ast.Call(func=ast.Name() | ast.Attribute()):
            yield from _other_calls(node)
        case ast.List(elts=elements) | ast.Tuple(elts=elements) | ast.Set(elts=elements):
            if isinstance(owner, ast.Compare | ast.Call) and all(isinstance(one, ast.Constant) for one in elements):
                yield from (_with(node, elts=others) for others in _without_one(elements) if others)
        case ast.AugAssign() | ast.Raise() | ast.Expr(value=ast.Call()):
            yield ast.Pass()


def _other_operators(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Compare(ops=operators):
            for at, operator in enumerate(operators):
                yield _with(node, ops=[*operators[:at], _OPERATORS[type(operator)](), *operators[at + 1 :]])
        case ast.BoolOp(op=operator, values=values):
            yield _with(node, op=_OPERATORS[type(operator)]())
            yield from (
                others[0] if len(others) == 1 else _with(node, values=others) for others in _without_one(values)
            )
        case ast.UnaryOp(operand=operand):
            yield operand
        case ast.BinOp(op=operator) | ast.AugAssign(op=operator) if type(operator) in _OPERATORS:
            yield _with(node, op=_OPERATORS[type(operator)]())
        case ast.Break() | ast.Continue():
            yield _OPERATORS[type(node)]()


def _other_calls(node: ast.Call) -> Iterator[ast.AST]:
    called: Any = node.func
    field = "id" if isinstance(called, ast.Name) else "attr"
    name = getattr(called, field)
    if name in _NAMES:
        yield _with(node, func=_with(called, **{field: _NAMES[name]}))
    if name in _CHOOSING:
        yield from (_with(node, keywords=others) for others in _without_one(node.keywords))


def _without_one(values: Sequence[Any]) -> Iterator[list[Any]]:
    for at in range(len(values)):
        yield [*values[:at], *values[at + 1 :]]


def _with(node: Any, **fields: Any) -> Any:
    changed = copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed
