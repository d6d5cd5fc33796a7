"""Convert dataclasses to JSON values and back, with errors that name the location and the fix.

One converter, made with msgspec, serves study files, run folders and messages. Strict decoding
rejects unknown keys and suggests the nearest name; lenient decoding skips them, so that a file of a
newer minor version stays readable. No I/O.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import types
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import cache
from typing import Any, Final, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from torchyard.errors import UsageError

T = TypeVar("T")

_FORMERLY: Final = "formerly"
_LONGEST_SHOWN: Final = 300
"""Characters of a value in a message."""
_PLAIN: Final = frozenset({str, int, float, bool, type(None)})
_STEP: Final = re.compile(r"\.(\w+)|\[(\d+|\.\.\.)\]")
"""A step of a path in a message of msgspec, such as `$.items[1].table[...]`."""
_MISSING: Final = re.compile(r"missing required field `(\w+)`")


def renamed(default: T, *, formerly: str) -> T:
    """Return a dataclass field that had another name.

    Records with the former name stay readable. Written records have both names for one release.
    """
    made: T = dataclasses.field(default=default, metadata={_FORMERLY: formerly})
    return made


def encode(value: object) -> Any:
    """Return the JSON values of a tree of dataclasses and named tuples."""
    if type(value) in _PLAIN:
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        encoded = {name: encode(getattr(value, name)) for name in _hints(type(value))}
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
    """Return the value as `kind`; raise UsageError with the location and the expected type.

    Defaults stay in the class: use `encode` or `dataclasses.fields`, not `vars`, on the result.
    """
    import msgspec

    target: Any = kind
    if strict or _has_renamed_fields(target):
        value = _with_field_names(target, value, where, strict)
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise _located(kind, value, where, strict, str(error)) from error


def nearest_hint(name: str, valid: Sequence[str], *, what: str = "name") -> str:
    """Return `did you mean X?`, or the list of valid names."""
    # Comparing takes quadratic time, and no name is this long.
    close = difflib.get_close_matches(name[:_LONGEST_SHOWN], valid, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"valid {what}s: {', '.join(sorted(valid)) or 'none'}"


def shown(value: object) -> str:
    """Return a value for a message, with bounded length: it may come from any file."""
    text = repr(value)
    if len(text) <= _LONGEST_SHOWN:
        return text
    return f"{text[: _LONGEST_SHOWN - 50]} ... {text[-20:]}"


def _with_field_names(kind: Any, value: Any, where: str, strict: bool) -> Any:
    """Return the value with field names as keys; reject unknown keys when strict.

    Keys may have dashes or be former names, and msgspec has one name for each field.
    """
    kind = _without_none(kind)
    arguments = get_args(kind)
    if _is_dataclass(kind) and isinstance(value, Mapping):
        hints, former = _hints(kind), _renamed_fields(kind)
        named: dict[str, Any] = {}
        for raw, item in value.items():
            name = str(raw).replace("-", "_")
            if former.get(name) in value:
                continue
            name = former.get(name, name)
            if name in hints:
                place = f"{where}.{raw}" if where else str(raw)
                named[name] = _with_field_names(hints[name], item, place, strict)
            elif strict:
                names = [valid.replace("_", "-") for valid in hints]
                raise UsageError(
                    f"{where + ': ' if where else ''}unknown key {shown(raw)}",
                    hint=nearest_hint(str(raw), names, what="key"),
                )
        return named
    if get_origin(kind) is dict and isinstance(value, Mapping):
        return {
            key: _with_field_names(arguments[1], item, f"{where}.{key}", strict)
            for key, item in value.items()
        }
    if get_origin(kind) is tuple and arguments[-1] is Ellipsis and isinstance(value, list):
        return [
            _with_field_names(arguments[0], item, f"{where}[{index}]", strict)
            for index, item in enumerate(value)
        ]
    return value


def _located(kind: Any, value: Any, where: str, strict: bool, message: str) -> UsageError:
    """Return the error for the value that a message of msgspec is about."""
    for name, index in _STEP.findall(message.rpartition(" - at `$")[2]):
        kind = _without_none(kind)
        if name:
            kind, value = _hints(kind)[name], value[name]
            key = name.replace("_", "-") if strict else name
            where = f"{where}.{key}" if where else key
        elif index == "...":
            kind = get_args(kind)[1]
            key = next(key for key, item in value.items() if not _converts(kind, item))
            where, value = f"{where}.{key}", value[key]
        else:
            items = get_args(kind)
            kind = items[0] if items[-1] is Ellipsis else items[int(index)]
            where, value = f"{where}[{index}]", value[int(index)]
    if missing := _MISSING.search(message):
        name = missing[1].replace("_", "-")
        return UsageError(
            f"{where + ': ' if where else ''}the key {name!r} is missing",
            hint=f"add {name} = ... there",
        )
    kind = _without_none(kind)
    choices = [item.value for item in kind] if _is_enum(kind) else list(get_args(kind))
    if _is_enum(kind) or get_origin(kind) is Literal:
        return UsageError(
            f"{where}: {shown(value)} is not a valid value",
            hint=nearest_hint(str(value), list(map(str, choices)), what="value"),
        )
    expected = _describe(kind)
    return UsageError(
        f"{where or 'the file'}: {shown(value)} is not {expected}", hint=f"give {expected}"
    )


def _converts(kind: Any, value: object) -> bool:
    try:
        decode(kind, value, where="", strict=False)
    except UsageError:
        return False
    return True


def _describe(kind: Any) -> str:
    if get_origin(kind) is tuple:
        items = get_args(kind)
        return "a list" if items[-1] is Ellipsis else f"a list of {len(items)}"
    if get_origin(kind) is dict or _is_dataclass(kind):
        return "a table"
    if _is_union(kind):
        return " or ".join(_describe(part) for part in get_args(kind) if part is not type(None))
    names = {str: "a string", int: "a whole number", float: "a number", bool: "true or false"}
    return names.get(kind, getattr(kind, "__name__", str(kind)))


def _is_union(kind: Any) -> bool:
    return get_origin(kind) in (Union, types.UnionType)


def _is_dataclass(kind: Any) -> bool:
    return dataclasses.is_dataclass(kind)


def _is_enum(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Enum)


@cache
def _without_none(kind: Any) -> Any:
    """Return X for `X | None`, and any other type as it is."""
    rest = [part for part in get_args(kind) if part is not type(None)]
    return rest[0] if _is_union(kind) and len(rest) == 1 else kind


@cache
def _hints(kind: Any) -> dict[str, Any]:
    """Return the types of a dataclass's fields."""
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


@cache
def _renamed_fields(kind: Any) -> dict[str, str]:
    """Return the fields of a dataclass that had another name, by that name."""
    return {
        field.metadata[_FORMERLY]: field.name
        for field in dataclasses.fields(kind)
        if _FORMERLY in field.metadata
    }


@cache
def _has_renamed_fields(kind: Any) -> bool:
    """Return whether the type or a type inside it has a renamed field."""
    if _is_dataclass(kind):
        return bool(_renamed_fields(kind)) or any(map(_has_renamed_fields, _hints(kind).values()))
    return any(map(_has_renamed_fields, get_args(kind)))
