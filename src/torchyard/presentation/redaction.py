"""Redact hosts, users, paths and variable values in text, with stable placeholders.

One instance serves a whole run, so that the same path, host or user has the same placeholder
everywhere: `<path-1>`, `<host-1>`, `<user-1>`. Known words (hosts, users, values of variables) are
matched as whole words; paths, addresses, `user@host` and `NAME=value` by their form. When in doubt,
more is redacted rather than less. Paths of kernel file systems and paths inside well-known packages
stay: they are the same everywhere. Knows nothing about runs. No I/O.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Final

__all__ = ["PrivateText", "home_users"]

_WORD: Final = r"[^\s/'\"`:;,()\[\]{}<>|=*?&]"
_PATH: Final = re.compile(
    rf"(?:(?<![\w./<>~\\])(?:~[\w.-]*|\.{{1,2}})?|(?<=\w/))/(?!/){_WORD}+(?:/{_WORD}*)*"
    r"|\b[A-Za-z]:\\[^\s'\"<>|]+"
)
_KERNEL: Final = ("/sys/", "/proc/", "/dev/")
_PUBLIC: Final = re.compile(
    r"/(?:site|dist)-packages/((?:torch|torchyard|torchvision|triton|transformers|timm|numpy)/.*)$"
)
_HOME: Final = re.compile(r"/(?:home|Users)/([\w.-]+)")
# Each begins where nothing of it could come before: otherwise a long word costs its length squared.
_URL: Final = re.compile(r"(?<![a-z0-9+.-])[a-z][a-z0-9+.-]*://[^\s'\"<>)]+", re.IGNORECASE)
_MAIL: Final = re.compile(r"(?<![\w.+-])[\w.+-]+@[\w][\w.-]*")
_ADDRESS: Final = re.compile(
    r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.])"
    r"|(?<![\w:])(?:[0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}(?![\w:])"
    r"|(?<![\w:])(?:[0-9A-Fa-f]{1,4}:){3,7}:?[0-9A-Fa-f]{1,4}(?![\w:])"
    r"|(?<![\w:])[0-9A-Fa-f]{1,4}(?::[0-9A-Fa-f]{1,4})*::(?:[0-9A-Fa-f]{1,4}:?)*(?![\w:])"
)
_ASSIGNMENT: Final = re.compile(
    r"(?<![\w-])([A-Z_][A-Z0-9_]+|[a-z_]*(?:proxy|token|secret|password|api_key))"
    r"(=)(\"[^\"]*\"|'[^']*'|[^\s,;]+)"
)
_SHORTEST: Final = 4
"""Of a value that is looked for everywhere: `1` and `yes` are in every text."""
_NOBODY: Final = frozenset({"", "root", "user", "nobody", "ubuntu", "runner", "home", "localhost"})


def home_users(text: str) -> set[str]:
    """Names of users in the paths of a text."""
    return set(_HOME.findall(text))


class PrivateText:
    """A cleaner that remembers what it called each thing."""

    def __init__(
        self,
        *,
        hosts: Iterable[str] = (),
        users: Iterable[str] = (),
        values: Iterable[str] = (),
        paths: Iterable[str] = (),
    ) -> None:
        self._numbers: dict[str, dict[str, int]] = defaultdict(dict)
        self._paths = _Finder({"path": {path for path in paths if "/" in path.strip("/")}})
        self._words = _Finder(
            {
                "value": {value for value in values if len(value) >= _SHORTEST},
                "host": set(hosts) - _NOBODY,
                "user": set(users) - _NOBODY,
            }
        )

    def placeholder(self, kind: str, text: str) -> str:
        """The name of this thing; the same thing keeps its name."""
        numbers = self._numbers[kind]
        return f"<{kind}-{numbers.setdefault(text, len(numbers) + 1)}>"

    def clean(self, text: str, *, assignments: bool = True) -> str:
        """The text without anything private; `assignments=False` keeps `NAME=value`."""
        if assignments:
            text = _ASSIGNMENT.sub(self._assignment, text)
        # What has a form comes before words, which may be parts of it.
        text = self._paths.sub(self.placeholder, text)
        text = _URL.sub(self._url, text)
        text = _PATH.sub(self._path, text)
        text = _MAIL.sub(lambda found: self.placeholder("user", found.group()), text)
        text = self._words.sub(self.placeholder, text)
        return _ADDRESS.sub(lambda found: self.placeholder("address", found.group()), text)

    def _assignment(self, found: re.Match[str]) -> str:
        name, equals, value = found.groups()
        if value.startswith("<") and value.endswith(">"):
            return found.group()
        return f"{name}{equals}{self.placeholder('value', value)}"

    def _url(self, found: re.Match[str]) -> str:
        kind = "path" if found.group().lower().startswith("file:") else "address"
        return self.placeholder(kind, found.group())

    def _path(self, found: re.Match[str]) -> str:
        path = found.group()
        if path.startswith(_KERNEL):
            return path
        public = _PUBLIC.search(path)
        if public:
            return f"<packages>/{public.group(1)}"
        trimmed = path.rstrip(".")
        return self.placeholder("path", trimmed) + path[len(trimmed) :]


class _Finder:
    """Known words of several kinds, as whole words; a host may be followed by its domain."""

    def __init__(self, words: Mapping[str, AbstractSet[str]]) -> None:
        # The longest first: one may begin with another.
        self._known = [
            (kind, word)
            for kind, found in words.items()
            for word in sorted(found, key=lambda word: (-len(word), word))
        ]
        parts = [
            re.escape(word) + (r"(?:\.[A-Za-z][\w-]*)*" if kind == "host" else "")
            for kind, word in self._known
        ]
        together = "|".join(f"({part})" for part in parts)
        self._pattern = re.compile(rf"(?<![\w-])(?:{together})(?![\w-])") if parts else None

    def sub(self, placeholder: Callable[[str, str], str], text: str) -> str:
        """The text with each word replaced by what `placeholder` makes of its kind and itself."""
        if self._pattern is None:
            return text
        return self._pattern.sub(
            lambda found: placeholder(*self._known[(found.lastindex or 1) - 1]), text
        )
