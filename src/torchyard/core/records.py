"""Convert dataclasses to JSON values and back, with errors that name the location and the fix.

One converter serves study files, run folders and messages. Strict decoding rejects unknown keys and
suggests the nearest name; lenient decoding skips them, so that a file of a newer minor version
stays readable. No I/O.
"""

from __future__ import annotations

import dataclasses
import difflib
import types
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from torchyard.errors import UsageError

__all__ = ["decode", "encode", "nearest_hint", "renamed", "shown"]

T = TypeVar("T")

_FORMERLY = "formerly"
_LONGEST_SHOWN = 300
"""Characters of a value in a message."""


def renamed(default: T, *, formerly: str) -> T:
    """Return a dataclass field that had another name.

    Records with the former name stay readable. Written records have both names for one release.
    """
    made: T = dataclasses.field(default=default, metadata={_FORMERLY: formerly})
    return made


def encode(value: object) -> Any:
    """Return the JSON values of a tree of dataclasses and named tuples."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        encoded = {f.name: encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
        for name, field in _renamed_fields(type(value)).items():
            encoded[name] = encoded[field]
        return encoded
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return dict(zip(value._fields, map(encode, value), strict=True))
    if isinstance(value, (list, tuple)):
        return [encode(item) for item in value]
    return value


def decode(kind: type[T], value: object, *, where: str, strict: bool = True) -> T:
    """Return the value as `kind`; raise UsageError with the location and the expected type."""
    result: T = _convert(kind, value, where, strict)
    return result


def nearest_hint(name: str, valid: Sequence[str], *, what: str = "name") -> str:
    """Return `did you mean X?`, or the list of valid names."""
    # Comparing takes quadratic time, and no name is this long.
    close = difflib.get_close_matches(name[:_LONGEST_SHOWN], valid, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"valid {what}s: {', '.join(sorted(valid)) or 'none'}"


def _convert(kind: Any, value: object, where: str, strict: bool) -> Any:
    origin = _origin(kind)
    if origin in (Union, types.UnionType):
        return _convert_union(kind, value, where, strict)
    if origin is Literal:
        return _convert_choice(get_args(kind), value, where)
    if origin is tuple:
        return _convert_tuple(get_args(kind), value, where, strict)
    if origin is dict:
        key_kind, item_kind = get_args(kind)
        mapping = _expect(value, Mapping, "a table", where)
        return {
            _convert(key_kind, k, where, strict): _convert(item_kind, v, f"{where}.{k}", strict)
            for k, v in mapping.items()
        }
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(_convert_choice(_enum_values(kind), value, where))
    if dataclasses.is_dataclass(kind):
        return _convert_dataclass(kind, value, where, strict)
    return _convert_scalar(kind, value, where)


def _convert_union(kind: Any, value: object, where: str, strict: bool) -> Any:
    choices = get_args(kind)
    if value is None and type(None) in choices:
        return None
    rest = [choice for choice in choices if choice is not type(None)]
    if len(rest) == 1:
        return _convert(rest[0], value, where, strict)
    if type(value) in rest:
        return value
    raise _wrong(value, " or ".join(_describe(choice) for choice in rest), where)


def _convert_choice(choices: tuple[Any, ...], value: object, where: str) -> Any:
    if value in choices:
        return value
    raise UsageError(
        f"{where}: {shown(value)} is not a valid value",
        hint=nearest_hint(str(value), [str(choice) for choice in choices], what="value"),
    )


def _convert_tuple(items: tuple[Any, ...], value: object, where: str, strict: bool) -> Any:
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise _wrong(value, "a list", where)
    if len(items) == 2 and items[1] is Ellipsis:  # noqa: PLR2004
        if _plain_types(items[0]).issuperset(map(type, value)):
            return tuple(value)
        return tuple(
            _convert(items[0], item, f"{where}[{index}]", strict)
            for index, item in enumerate(value)
        )
    if len(items) != len(value):
        raise _wrong(value, f"a list of {len(items)}", where)
    return tuple(
        _convert(item_kind, item, f"{where}[{index}]", strict)
        for index, (item_kind, item) in enumerate(zip(items, value, strict=True))
    )


def _convert_dataclass(kind: Any, value: object, where: str, strict: bool) -> Any:
    mapping = _expect(value, Mapping, "a table", where)
    fields, required = _fields_of(kind)
    former = _renamed_fields(kind)
    values: dict[str, Any] = {}
    for raw, item in mapping.items():
        name = str(raw).replace("-", "_")
        if name in former:
            name = former[name]
            if name in mapping:
                continue
        field = fields.get(name)
        if field is not None:
            hint, plain = field
            values[name] = (
                item
                if type(item) in plain
                else _convert(hint, item, f"{where}.{raw}" if where else raw, strict)
            )
        elif strict:
            names = [valid.replace("_", "-") for valid in fields]
            raise UsageError(
                f"{where + ': ' if where else ''}unknown key {shown(raw)}",
                hint=nearest_hint(str(raw), names, what="key"),
            )
    for name in required:
        if name not in values:
            raise UsageError(
                f"{where + ': ' if where else ''}the key {name.replace('_', '-')!r} is missing",
                hint=f"add {name.replace('_', '-')} = ... there",
            )
    return kind(**values)


def _convert_scalar(kind: Any, value: object, where: str) -> Any:
    if kind is Any or kind is object:
        return value
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind in (int, float) and isinstance(value, bool):
        raise _wrong(value, _describe(kind), where)
    if isinstance(value, kind):
        return value
    raise _wrong(value, _describe(kind), where)


def _expect(value: object, kind: type[Any], expected: str, where: str) -> Any:
    if isinstance(value, kind):
        return value
    raise _wrong(value, expected, where)


def _wrong(value: object, expected: str, where: str) -> UsageError:
    return UsageError(
        f"{where or 'the file'}: {shown(value)} is not {expected}", hint=f"give {expected}"
    )


def shown(value: object) -> str:
    """Return a value for a message, with bounded length: it may come from any file."""
    text = repr(value)
    if len(text) <= _LONGEST_SHOWN:
        return text
    return f"{text[: _LONGEST_SHOWN - 50]} ... {text[-20:]}"


def _describe(kind: Any) -> str:
    names = {str: "a string", int: "a whole number", float: "a number", bool: "true or false"}
    return names.get(kind, getattr(kind, "__name__", str(kind)))


@cache
def _origin(kind: Any) -> Any:
    return get_origin(kind)


@cache
def _enum_values(kind: type[Enum]) -> tuple[Any, ...]:
    return tuple(item.value for item in kind)


@cache
def _renamed_fields(kind: Any) -> dict[str, str]:
    """Return the fields of a dataclass that had another name, by that name."""
    return {
        field.metadata[_FORMERLY]: field.name
        for field in dataclasses.fields(kind)
        if _FORMERLY in field.metadata
    }


@cache
def _fields_of(kind: Any) -> tuple[dict[str, tuple[Any, frozenset[type]]], tuple[str, ...]]:
    """Return the fields with their type and its plain types, and the fields without default."""
    hints, fields = get_type_hints(kind), dataclasses.fields(kind)
    required = (
        field.name
        for field in fields
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    )
    named = {field.name: (hints[field.name], _plain_types(hints[field.name])) for field in fields}
    return named, tuple(required)


@cache
def _plain_types(kind: Any) -> frozenset[type]:
    """Return the types whose values need no conversion; most values of a record have one of them."""
    if kind in (str, int, float, bool):
        return frozenset({kind})
    if get_origin(kind) in (Union, types.UnionType):
        parts = [
            frozenset({part}) if part is type(None) else _plain_types(part)
            for part in get_args(kind)
        ]
        return frozenset().union(*parts)
    return frozenset()
