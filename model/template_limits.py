"""Bounds on what a chat template may do: time, the size of any value, and of all values together.

Imports jinja2. A template is a program that comes with a model or with a request. jinja2's sandbox keeps it from
reaching anything; it does not keep it from looping for a day, or from doubling a text until memory is gone. Here each
pass of a loop, each macro and each call looks at the clock, and whatever can make a value much larger than its
arguments is measured before it is done. What cannot be measured here (one comparison of crafted lists, say) is left to
the process in which a request's template runs (`render_apart.py`).
"""

import contextvars
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import attrs
import jinja2
from jinja2 import nodes
from jinja2.runtime import str_join
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer


class TemplateLimit(jinja2.exceptions.SecurityError):
    """The template has gone over a limit."""


@attrs.frozen(kw_only=True)
class Limits:
    """For one rendering."""

    seconds: float = 2.0
    value_size: int = 32 * 1024 * 1024
    """Most characters, or entries, of one value; also of the result."""
    total_size: int = 1024 * 1024 * 1024
    """Of all values that were made, those that are gone again included."""
    number: int = 10_000
    """Highest number that a method or a filter is given: a width, say."""


MODEL_LIMITS = Limits()
REQUEST_LIMITS = Limits(seconds=1.0, value_size=4 * 1024 * 1024, total_size=64 * 1024 * 1024, number=1000)


@attrs.define
class _Allowance:
    limits: Limits
    deadline_s: float
    left: int

    def spend(self, size: int) -> None:
        if size > self.limits.value_size:
            raise TemplateLimit(f"it makes a value of more than {self.limits.value_size} characters or entries")
        self.left -= size
        if self.left < 0:
            raise TemplateLimit("it makes too much text")

    def look_at_the_clock(self) -> None:
        if time.monotonic() > self.deadline_s:
            raise TemplateLimit(f"it takes longer than {self.limits.seconds:g} s")


_allowance: contextvars.ContextVar[_Allowance] = contextvars.ContextVar("allowance")
_UNUSED = _Allowance(MODEL_LIMITS, float("inf"), MODEL_LIMITS.total_size)


@contextmanager
def limited(limits: Limits) -> Iterator[None]:
    """What is rendered inside keeps to `limits`, or raises TemplateLimit."""
    token = _allowance.set(_Allowance(limits, time.monotonic() + limits.seconds, limits.total_size))
    try:
        yield
    finally:
        _allowance.reset(token)


def _now() -> _Allowance:
    """While a template is compiled, constants are computed without an allowance of their own."""
    return _allowance.get(_UNUSED)


def _size(value: Any) -> int:
    """About the characters that `value` has when written out. Gives up, raising, past the size a value may have."""
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, int):
        return 8 + value.bit_length() // 3
    if not isinstance(value, Mapping | list | tuple | set):
        return 32
    most = _now().limits.value_size
    size, pending = 0, [value]
    while pending:
        entry = pending.pop()
        size += len(entry) + 2 if isinstance(entry, str | bytes) else 8
        if isinstance(entry, Mapping):
            pending.extend(entry.keys())
            pending.extend(entry.values())
        elif isinstance(entry, list | tuple | set):
            pending.extend(entry)
        if size + len(pending) > most:
            raise TemplateLimit(f"it makes a value of more than {most} characters or entries")
    return size


def _repeat(left: Any, right: Any) -> int:
    if isinstance(left, int | float) and isinstance(right, int | float):
        return _size(left) + _size(right)
    times, what = (left, right) if isinstance(left, int) else (right, left)
    return max(times, 0) * _size(what) if isinstance(times, int) else 0


def _power(left: Any, right: Any) -> int:
    if isinstance(left, int) and isinstance(right, int) and right > 0:
        return left.bit_length() * right
    return 8


_WIDTH = re.compile(r"\d{4,}|\*|\{[^{}]*\{")


def _format(template: Any, values: Any) -> int:
    """Widths of four digits and more, or ones that are values themselves, are not for prompts."""
    if not isinstance(template, str | bytes):
        return 8
    if _WIDTH.search(template if isinstance(template, str) else template.decode("latin-1")):
        raise TemplateLimit("it formats with a width that is too large or computed")
    return len(template) + template.count("%" if isinstance(template, str) else b"%") * _size(values)  # type: ignore[arg-type]


_BINARY: dict[str, Callable[[Any, Any], int]] = {
    "+": lambda left, right: _size(left) + _size(right),
    "*": _repeat,
    "**": _power,
    "%": _format,
}


def _made_by(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
    """The size of what a method or a filter makes, at most. `args` begins with the value it is applied to."""
    limits = _now().limits
    given = [*args[1:], *kwargs.values()]
    for value in given:
        if isinstance(value, int) and abs(value) > limits.number:
            raise TemplateLimit(f"a number over {limits.number} is given to {name}")
    value = args[0] if args else ""
    size, others = _size(value), sum(map(_size, given))
    numbers = sum(abs(entry) for entry in given if isinstance(entry, int))
    match name:
        case "replace" if isinstance(value, str) and len(args) > 2 and isinstance(args[1], str):
            return size + (value.count(args[1]) + 1) * _size(args[2])
        case "join":
            entries = max(len(entry) for entry in (value, *given, ()) if hasattr(entry, "__len__"))
            return size + others + (entries + 1) * min(size, others)
        case "format" if isinstance(value, str):
            return _format(value, ()) + (value.count("{") + value.count("%")) * others
        case "indent" | "wordwrap" | "tojson" | "expandtabs" | "translate" | "xmlattr" | "urlize":
            return size * (1 + numbers + others)
        case _:
            return 2 * size + others + numbers


_CLOCK = "_clock"


@jinja2.pass_context
def _look_at_the_clock(_: Any, __: Any) -> bool:
    _now().look_at_the_clock()
    return True


class _Watched(NodeTransformer):
    """Rewrites a template so that its loops look at the clock, and its `~` is measured."""

    def _step(self, node: Any) -> Any:
        self.generic_visit(node)
        # A test is called directly, a third of the cost of a call; one that takes the context is never folded away.
        look = nodes.Test(nodes.Const(None), _CLOCK, [], [], None, None)
        node.body.insert(0, nodes.ExprStmt(look).set_lineno(node.lineno))
        return node

    visit_For = visit_Macro = visit_CallBlock = _step

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        joined = nodes.Call(nodes.EnvironmentAttribute("joined"), node.nodes, [], None, None)
        return joined.set_lineno(node.lineno)


class LimitedEnvironment(ImmutableSandboxedEnvironment):
    """A sandbox that keeps to the limits in force. Threads may share it."""

    intercepted_binops = frozenset(_BINARY)

    def __init__(self, **options: Any) -> None:
        super().__init__(finalize=_written, **options)
        del self.globals["lipsum"]
        self.filters.update({name: _measured(name, filter_) for name, filter_ in self.filters.items()})
        self.tests[_CLOCK] = _look_at_the_clock
        self.concat = _concat  # type: ignore[method-assign]

    def add_filter(self, name: str, filter_: Callable[..., Any]) -> None:
        """In place of the one of that name."""
        self.filters[name] = _measured(name, filter_)

    def joined(self, *values: Any) -> str:
        """`a ~ b`."""
        _now().spend(sum(map(_size, values)))
        return str_join(values)

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        return super()._generate(_Watched().visit(source), *args, **kwargs)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "+" and type(left) is str is type(right):  # by far the most frequent
            _now().spend(len(left) + len(right))
            return left + right
        _now().spend(_BINARY[operator](left, right))
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        owner = getattr(__obj, "__self__", None)
        if owner is not __self:
            allowance = _now()
            allowance.look_at_the_clock()
            # Methods of plain values come wrapped where they format; those keep the name, and lose their owner.
            if isinstance(owner, str | bytes | list | tuple | Mapping):
                allowance.spend(_made_by(__obj.__name__, (owner, *args), kwargs))
            elif getattr(__obj, "__name__", "") in ("format", "format_map"):
                allowance.spend(_made_by("format", (_bound(__obj), *args), kwargs))
        return super().call(__context, __obj, *args, **kwargs)


def _written(value: Any) -> Any:
    """What `{{ value }}` writes. Lists that share their parts may be far longer in writing than in memory."""
    if isinstance(value, list | tuple | Mapping):
        _now().spend(_size(value))
    return value


def _bound(wrapper: Any) -> Any:
    """The text whose `format` jinja2's sandbox has wrapped."""
    return getattr(getattr(wrapper, "__wrapped__", None), "__self__", "")


def _measured(name: str, filter_: Callable[..., Any]) -> Callable[..., Any]:
    """The same filter. One that jinja2 passes its environment or a context first is measured without it."""
    skip = 1 if getattr(filter_, "jinja_pass_arg", None) is not None else 0

    def measured(*args: Any, **kwargs: Any) -> Any:
        allowance = _now()
        allowance.look_at_the_clock()
        values = tuple(list(arg) if isinstance(arg, Iterator) else arg for arg in args[skip:])
        allowance.spend(_made_by(name, values, kwargs))
        return filter_(*args[:skip], *values, **kwargs)

    if skip:
        measured.jinja_pass_arg = filter_.jinja_pass_arg  # type: ignore[attr-defined]
    return measured


def _concat(pieces: Iterable[str]) -> str:
    """What a template, a macro or a block has written: measured while it comes, so a flood ends in time."""
    allowance = _now()
    result: list[str] = []
    size = 0
    for count, piece in enumerate(pieces):
        size += len(piece)
        result.append(piece)
        if size > allowance.limits.value_size:
            break
        if not count % 256:
            allowance.look_at_the_clock()
    allowance.spend(size)
    return "".join(result)
