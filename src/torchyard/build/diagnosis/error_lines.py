"""Which single lines are errors, and of whom.

Written from the outside in: a line counts because it has the form in which a tool states an error,
never because the word occurs in it. So flags such as -Werror, files such as error.cpp and the
checks of a configure run need no exceptions here. Knows nothing of causes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["ERROR_FRAGMENTS", "Stated", "is_check", "is_command", "is_error", "is_wrapper"]


@dataclass(frozen=True)
class Stated:
    """A line that states an error."""

    tool: str
    weak: bool
    """Only says that something before it failed."""


ERROR_FRAGMENTS: tuple[bytes, ...] = (
    b"error",
    b"fatal",
    b"traceback (most recent call last)",
    b"undefined reference to",
    b"undefined symbol",
    b"cannot find -l",
    b"relocation truncated",
    b"multiple definition of",
    b"failed:",
    b": failed",
    b"unavailable",
    b"exception: ",
    b"notfound: ",
    b"*** ",
    b"killed",
    b"segmentation fault",
    b"illegal instruction",
    b"not found",
    b"no such file",
    b"permission denied",
    b"no space left",
    b"cannot ",
    b"curl: (",
    b"e: ",
    b"terminate called",
    b"assertion ",
    b"hunk ",
    b"cmake warning",
    b"change dir: ",
)
"""Lower-case texts, one of which is in every line that matters here."""

_PLACE = r"\S[^:]*:\d+(?::\d+)?"
_COMPILER = (
    r"(?:\S*/)?(?:[\w.-]*-)?(?:gcc|g\+\+|cc|c\+\+|clang(?:\+\+)?|hipcc|gfortran)(?:-[\d.]+)?"
)
_LINKER = r"(?:\S*/)?(?:[\w.-]*-)?(?:ld(?:\.\w+)?|mold|collect2|ld64)[\s:](?!.*\bwarning: )"
_SHELL = r"(?:\S*/)?(?:ba|da|z)?sh"
_SIGNALS = r"(?:Killed|Segmentation fault|Illegal instruction|Bus error|Aborted)"
_FORMS: dict[str, tuple[str, ...]] = {
    # tool: patterns for the beginning of a line; the first tool with one that matches is named
    "compiler": (
        rf"{_PLACE}: (?:fatal |internal compiler )?error\b",
        r"\S.*\(\d+\): (?:catastrophic )?error\b",
        r"(?:nvcc|ptxas|nvlink|fatbinary|cicc)\b[^;:]*(?:; )?\b(?:fatal|error)\s*:",
        rf"{_COMPILER}: (?:fatal |internal compiler )?error: ",
        r"(?:cc1(?:plus)?|f951|lto1): (?:fatal |internal compiler )?error: ",
        r"virtual memory exhausted: ",
    ),
    "assembler": (r"\S[^:]*:\d+: (?:Fatal )?Error: ",),
    "linker": (
        r".*\bundefined reference to ",
        r".*: relocation truncated to fit: ",
        r".*: multiple definition of ",
        rf"{_LINKER}.*(?:error|cannot (?:find|open)|undefined symbol|not recognized|No such file)",
        rf"{_LINKER}.*(?:No space left|exhausted|recompile with -fPIC|incompatible|terminated)",
    ),
    "loader": (r".*: (?:error while loading shared libraries|symbol lookup error): ",),
    "ninja": (r"ninja: (?:error|fatal): ",),
    "make": (
        r"(?:\S*/)?g?make(?:\[\d+\])?: \*\*\* (?!\[|Waiting for)",
        r"\S*[Mm]akefile\S*:\d+: \*\*\* ",
    ),
    "scons": (r"scons: \*\*\* ",),
    "configure": (r"configure: error: ",),
    "git": (r"fatal: ",),
    "apt": (r"(?:E|Err): ",),
    "dpkg": (r"dpkg(?:-\w+)?: error",),
    "cache": (r"s?ccache: (?:error|caused by)",),
    "pip": (
        r"ERROR: ",
        r"error: (?:externally-managed-environment|backend-unavailable)",
        r"error: (?:subprocess-exited-with-error|metadata-generation-failed)",
        r"× Cannot import build backend",
    ),
    "curl": (r"curl: \(\d+\) ",),
    "patch": (r"(?:Hunk #\d+ FAILED|\d+ out of \d+ hunks? FAILED)",),
    "shell": (
        rf"{_SHELL}: .*: (?:(?:command )?not found|No such file|Permission denied)",
        rf"{_SHELL}: .*: cannot execute",
        rf"{_SHELL}: fork: ",
        rf"(?:\S+: line \d+: )?\s*(?:\d+ )?{_SIGNALS}\b",
        r"\S+: line \d+: .*: (?:command not found|No such file|Permission denied)",
    ),
    "python": (
        r"Fatal Python error: ",
        r"\S*python[\d.]*: (?:can't open file|No module named|error while finding) ",
        # An exception whose traceback the program kept to itself.
        r"[A-Z]\w*(?:Error|Exception|NotFound): ",
    ),
    "program": (
        r"(?:terminate called |LLVM ERROR: |\S.*: Assertion .* failed)",
        r"(?:tar|gzip|xz|unzip|cp|mv|mkdir|rmdir|touch|chmod|install|ln|rm|cat|sed)(?: \w+)?: .*(?:cannot|No such|denied)",
        r"(?:tar|gzip|xz|unzip|cp|mv)(?: \w+)?: .*(?:No space|unexpected|not recoverable|Error)",
        r"(?:\S*/)?(?:ar|ranlib|objcopy|strip|patchelf): .*: (?:No space|No such|malformed)",
        r"\S+: FAILED(?: open or read)?$",
        r"(?:\S*/)?[\w.+-]*: (?:fatal )?error: ",
        r"(?:fatal |internal )?error(?:\[\w+\])?: ",
        r"(?:FATAL|Error)(?: ERROR)?: ",
    ),
}
_COMPILED = [
    (tool, re.compile(pattern, re.ASCII))
    for tool, patterns in _FORMS.items()
    for pattern in patterns
]

_ANY_FORM = re.compile("|".join(f"(?:{form.pattern})" for _, form in _COMPILED), re.ASCII)
"""One expression for all: most lines that are looked at have none of the forms."""

_NOT_STATED = re.compile(
    r"(?:\[\s*\d+(?:/\d+|%)\]|-- |#|//|\+ |\$ |\d+ \||\| )"
    r"|.*\b(?:warning|note|remark): "
    r"|(?:WARNING|DEPRECATION|INFO|DEBUG)\b",
    re.ASCII,
)
# What CMake and autoconf compile to see whether it compiles.
_CHECK = re.compile(
    r"CMakeFiles/CMakeTmp|CMakeScratch/TryCompile|/TryCompile-|cmTC_[0-9a-f]{4,}"
    r"|conftest\.c|testC(?:XX)?Compiler\.c|CheckSymbolExists|CheckFunctionExists",
    re.ASCII,
)
_WEAK = re.compile(
    r".*(?:ld returned \d+ exit status|linker command failed with exit code"
    r"|fatal: not a git repository"
    r"|error: command .* failed(?: with exit (?:code|status)| ?$)"
    r"|subprocess-exited-with-error|metadata-generation-failed|legacy-install-failure"
    r"|error: backend-unavailable|Failed (?:building wheel|to build)|Could not build wheels|Error compiling objects"
    r"|scons: \*\*\* \[.*\] Error|\*\*\* \[.*\] Error|error: recipe for target"
    r"|E: Can not write log|compilation terminated|Failed to recurse into submodule|error: failed to push)",
    re.ASCII,
)
_BEFORE_PROGRAM = re.compile(
    # What a shell does before the program: nothing, a change of folder, variables.
    r"(?:: && |cd (?:\S+|'[^']*'|\"[^\"]*\") && |[A-Za-z_]\w*=\S* |\(|env |exec |time )+"
)
_PROGRAM = re.compile(r"[\w.+@/~-]*[\w+]")
_TOOL = re.compile(
    r"(?:[\w.]+-)*(?:gcc|g\+\+|cc|c\+\+|clang(?:\+\+)?|nvcc|hipcc|icpx?|icx|gfortran|ld|ar|ranlib|as"
    r"|ccache|sccache|distcc|python\w*|cmake|ninja|make|sh|bash|perl|git|cp|mv|ln|rm|touch|mkdir|cat"
    r"|sed|tar|protoc|objcopy|strip|patchelf|swig|cython|rustc|cargo|go|node|install|echo|test)"
    r"(?:-?[\d.]+)?"
)
_OPTION = re.compile(r"(?:^|\s)--?[A-Za-z]")
_COMMAND_SEARCHED = 4096
_WRAPPER = re.compile(
    r"(?:subprocess\.CalledProcessError|(?:\w+\.)*(?:CompileError|LinkError|DistutilsExecError"
    r"|DistutilsError|BuildBackendException|InstallationSubprocessError)"
    r"|RuntimeError: Error (?:compiling objects|building extension)"
    r"|SystemExit|build\.BuildException)",
    re.ASCII,
)


def is_error(text: str) -> Stated | None:
    """Who states an error in this line, if it is one."""
    # Without its indentation: patterns that skip it themselves take quadratic time.
    text = text.lstrip()
    if _ANY_FORM.match(text) is None or _NOT_STATED.match(text) or is_check(text):
        return None
    for tool, form in _COMPILED:
        if form.match(text):
            return Stated(tool, weak=_WEAK.match(text) is not None)
    return None


def is_check(text: str) -> bool:
    """Whether the line is about a file that a configuration compiles only to see whether it can."""
    return _CHECK.search(text) is not None


def is_command(text: str) -> bool:
    """Whether a line can be a command of a build: begins with a program, states no error."""
    text = text.strip()
    command = _BEFORE_PROGRAM.match(text)
    rest = text[command.end() if command else 0 :]
    words = rest.split(None, 2)
    if not words or not _PROGRAM.fullmatch(words[0]) or is_error(text) is not None:
        return False
    if "/" in words[0] or _TOOL.fullmatch(words[0]):
        return len(words) > 1 or command is not None
    return bool(_OPTION.search(rest[:_COMMAND_SEARCHED]))


def is_wrapper(exception: str) -> bool:
    """Whether a Python exception only reports that a program it started failed."""
    return _WRAPPER.match(exception.strip()) is not None
