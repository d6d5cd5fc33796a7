"""Redact hosts, users, paths and variable values in text, with stable placeholders.

One instance serves a whole run, so that the same path, host or user has the same placeholder
everywhere: `<path-1>`, `<host-1>`, `<user-1>`. Known words (hosts, users, values of variables) are
matched as whole words; paths, addresses, `user@host` and `NAME=value` by their form. When in doubt,
more is redacted rather than less. Paths of kernel file systems and paths inside well-known packages
stay: they are the same everywhere. Independent of runs. No I/O.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Final

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
# The lookbehinds keep matching linear: without them a long word takes quadratic time.
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
"""Minimum length of a variable value to redact: `1` and `yes` occur in every text."""
_GENERIC_NAMES: Final = frozenset(
    {"", "root", "user", "nobody", "ubuntu", "runner", "home", "localhost"}
)


def home_users(text: str) -> set[str]:
    """Return the user names in home directory paths of a text."""
    return set(_HOME.findall(text))


class Redactor:
    """Redacts text; the same item always gets the same placeholder."""

    def __init__(
        self,
        *,
        hosts: Iterable[str] = (),
        users: Iterable[str] = (),
        values: Iterable[str] = (),
        paths: Iterable[str] = (),
    ) -> None:
        self._numbers: dict[str, dict[str, int]] = defaultdict(dict)
        self._paths = _WordReplacer({"path": {path for path in paths if "/" in path.strip("/")}})
        self._words = _WordReplacer(
            {
                "value": {value for value in values if len(value) >= _SHORTEST},
                "host": set(hosts) - _GENERIC_NAMES,
                "user": set(users) - _GENERIC_NAMES,
            }
        )

    def placeholder(self, kind: str, text: str) -> str:
        """Return the placeholder of an item."""
        numbers = self._numbers[kind]
        return f"<{kind}-{numbers.setdefault(text, len(numbers) + 1)}>"

    def clean(self, text: str, *, assignments: bool = True) -> str:
        """Return the redacted text; `assignments=False` keeps `NAME=value`."""
        if assignments:
            text = _ASSIGNMENT.sub(self._assignment, text)
        # Patterns come before words, which may be parts of them.
        text = self._paths.sub(self.placeholder, text)
        text = _URL.sub(self._url, text)
        text = _PATH.sub(self._path, text)
        text = _MAIL.sub(lambda match: self.placeholder("user", match.group()), text)
        text = self._words.sub(self.placeholder, text)
        return _ADDRESS.sub(lambda match: self.placeholder("address", match.group()), text)

    def _assignment(self, match: re.Match[str]) -> str:
        name, equals, value = match.groups()
        if value.startswith("<") and value.endswith(">"):
            return match.group()
        return f"{name}{equals}{self.placeholder('value', value)}"

    def _url(self, match: re.Match[str]) -> str:
        kind = "path" if match.group().lower().startswith("file:") else "address"
        return self.placeholder(kind, match.group())

    def _path(self, match: re.Match[str]) -> str:
        path = match.group()
        if path.startswith(_KERNEL):
            return path
        public = _PUBLIC.search(path)
        if public:
            return f"<packages>/{public.group(1)}"
        trimmed = path.rstrip(".")
        return self.placeholder("path", trimmed) + path[len(trimmed) :]


class _WordReplacer:
    """Replaces known words of several kinds, as whole words; a host may be followed by its domain."""

    def __init__(self, words: Mapping[str, AbstractSet[str]]) -> None:
        # Longest first, because one may be a prefix of another.
        self._kinds_and_words = [
            (kind, word)
            for kind, kind_words in words.items()
            for word in sorted(kind_words, key=lambda word: (-len(word), word))
        ]
        parts = [
            re.escape(word) + (r"(?:\.[A-Za-z][\w-]*)*" if kind == "host" else "")
            for kind, word in self._kinds_and_words
        ]
        alternatives = "|".join(f"({part})" for part in parts)
        self._pattern = re.compile(rf"(?<![\w-])(?:{alternatives})(?![\w-])") if parts else None

    def sub(self, placeholder: Callable[[str, str], str], text: str) -> str:
        """Replace each known word by the placeholder for its kind and text."""
        if self._pattern is None:
            return text
        return self._pattern.sub(
            lambda match: placeholder(*self._kinds_and_words[(match.lastindex or 1) - 1]), text
        )
