"""Find the first real error of a log, and the command that failed.

Classifies single lines (error, check, command, wrapper) and follows messages over several lines:
blocks of CMake, tracebacks of Python (the last exception is the error), FAILED blocks of ninja. Does
not use signatures.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from torchyard.builds.diagnosis.log_blocks import shortened
from torchyard.builds.diagnosis.model import FailedCommand, FirstError


@dataclass(frozen=True)
class ErrorStatement:
    """Origin of a line that states an error."""

    tool: str
    weak: bool
    """It only reports that something before it failed."""


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
"""Lower-case texts, one of which is in every relevant line."""

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
        # An exception without a traceback.
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
"""One expression for all forms: most lines have none of them."""

_NOT_AN_ERROR = re.compile(
    r"(?:\[\s*\d+(?:/\d+|%)\]|-- |#|//|\+ |\$ |\d+ \||\| )"
    r"|.*\b(?:warning|note|remark): "
    r"|(?:WARNING|DEPRECATION|INFO|DEBUG)\b",
    re.ASCII,
)
# Test programs that CMake and autoconf compile.
_CHECK = re.compile(
    r"CMakeFiles/CMakeTmp|CMakeScratch/TryCompile|/TryCompile-|cmTC_[0-9a-f]{4,}"
    r"|conftest\.c|testC(?:XX)?Compiler\.c|CheckSymbolExists|CheckFunctionExists",
    re.ASCII,
)
_WEAK_ERROR = re.compile(
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
    # Shell syntax before the program: nothing, a change of folder, variables.
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


def is_error(text: str) -> ErrorStatement | None:
    """Return the origin of the error that a line states, or None."""
    # Without indentation: patterns that skip it take quadratic time.
    text = text.lstrip()
    if _ANY_FORM.match(text) is None or _NOT_AN_ERROR.match(text) or is_check(text):
        return None
    for tool, form in _COMPILED:
        if form.match(text):
            return ErrorStatement(tool, weak=_WEAK_ERROR.match(text) is not None)
    return None


def is_check(text: str) -> bool:
    """Return whether the line is about a test program of a configure step."""
    return _CHECK.search(text) is not None


def is_command(text: str) -> bool:
    """Return whether a line can be a command: it begins with a program and states no error."""
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
    """Return whether a Python exception only reports that a subprocess failed."""
    return _WRAPPER.match(exception.strip()) is not None


_TEXT_LENGTH = 1000
_COMMAND_LENGTH = 64 * 1024
_TRACEBACK_LINES = 400
_WRAPPED_LINES = 6
_WRAPPED_LENGTH = 500
_TRACEBACK = re.compile(r"(?P<indent>[\s|+>]*)Traceback \(most recent call last\):")
_REPLACED = re.compile(r"[\s|]*During handling of the above exception, another exception")
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?:: .*)?$", re.ASCII)
_FAILED = re.compile(r"\s*FAILED: (?!\d+\b)(?:\[code=(?P<code>\d+)\] )?(?P<target>.*)")
_PROGRESS = re.compile(r"\[\d+/\d+\] +")
_FAILED_END = re.compile(r"\s*(?:\[\d+/\d+\] |ninja: |FAILED: )")
_MAKE_FAILED = re.compile(
    r"g?make(?:\[\d+\])?: \*\*\* \[(?:[^\]:]*:\d+: )?(?P<target>[^\]]+)\] Error (?P<code>\d+)"
)
_TRY_COMPILE_BEGIN = re.compile(r".*\bChange Dir: .*(?:CMakeTmp|CMakeScratch|TryCompile)")
_TRY_COMPILE_END = re.compile(r"-- |CMake |(?:ninja|g?make): ")

_CERTAIN, _LIKELY, _WEAK = 0, 1, 2


class FirstErrorFinder:
    """Finds the first error of the most certain kind."""

    def __init__(self) -> None:
        self._best: tuple[int, FirstError] | None = None
        self.last_line = 0
        """Number of the last line that states an error or a failed target."""
        self.failed_command: FailedCommand | None = None
        self.in_failed_block = False
        self.command_follows = False
        self._traceback_indent = -1
        self._traceback_lines = 0
        self._exception: FirstError | None = None
        self.in_check = False
        """Whether the last line belongs to a try_compile check of CMake."""
        self._in_try_compile = False
        self.in_frames = False
        """Whether the last line was a frame of a traceback, which only quotes code."""

    @property
    def first_error(self) -> FirstError | None:
        """The first real error."""
        return self._best[1] if self._best else None

    @property
    def needs_every_line(self) -> bool:
        """Whether an open message needs the following lines, whatever they contain."""
        return (
            self.command_follows
            or self._in_try_compile
            or self._traceback_indent >= 0
            or self.in_failed_block
            or self._exception is not None
        )

    def process(self, line: int, text: str) -> None:
        """Process one line."""
        self.in_frames = False
        if self.command_follows:
            self.command_follows = False
            if is_command(text):
                self._take_command(text)
                return
        text = shortened(text)
        if self._is_check_output(text):
            return
        if self._exception is not None and text.strip():
            self._decide_exception(replaced=_REPLACED.match(text) is not None)
        if self.in_failed_block and _FAILED_END.match(text):
            self.in_failed_block = False
        if self._traceback_indent >= 0 and self._in_traceback(line, text):
            return
        if traceback := _TRACEBACK.match(text):
            self._traceback_indent = len(traceback["indent"])
            self._traceback_lines = 0
            return
        if stated := is_error(text):
            self._keep(line, text, stated.tool, weak=stated.weak)
        elif make := _MAKE_FAILED.match(text):
            self._begin_make_failed(line, make)

    def process_failed(self, line: int, text: str, *, command: str) -> None:
        """Process a failed target reported by ninja; `command` is the last progress line.

        The command is on the next line. If it is not, because ninja was called with -v or the log
        was filtered, it may be in the progress line.
        """
        self.in_frames = False
        self.command_follows = False
        if self._is_check_output(shortened(text)):
            return
        if self._exception is not None:
            self._decide_exception(replaced=False)
        failed = _FAILED.match(shortened(text))
        if failed is None:
            return
        self._traceback_indent = -1
        self.in_failed_block = True
        self.command_follows = True
        self.last_line = line
        if self.failed_command is not None and self.failed_command.from_ninja:
            self.command_follows = False
            return
        target = failed["target"].strip()[:_TEXT_LENGTH]
        shown = _PROGRESS.sub("", command.strip())
        mentioned = target.split()[:1]
        in_progress = mentioned and mentioned[0] in shown.split() and is_command(shown)
        self.failed_command = FailedCommand(
            target=target,
            command=shown[:_COMMAND_LENGTH] if in_progress else "",
            line=line,
            exit_code=int(failed["code"]) if failed["code"] else None,
            from_ninja=True,
        )

    def process_cmake_error(self, line: int, message: str, inner: list[tuple[int, str]]) -> None:
        """Process a complete `CMake Error`, joined and as single lines.

        An error of a compiler or downloader inside it is more specific than that of CMake. CMake
        wraps long lines, so a message without a location continues on the next ones.
        """
        for index, (number, text) in enumerate(inner):
            stated = is_error(text)
            if stated is None or stated.weak:
                continue
            length = _WRAPPED_LINES if stated.tool == "program" else 1
            joined = " ".join(part.strip() for _, part in inner[index : index + length])
            self._keep(number, joined[:_WRAPPED_LENGTH], stated.tool)
            return
        self._keep(line, message, "cmake")

    def end(self) -> None:
        """Finish at the end of the log."""
        self._decide_exception(replaced=False)

    def _keep(self, line: int, text: str, tool: str, *, weak: bool = False) -> None:
        self.last_line = line
        certainty = _WEAK if weak else _CERTAIN if self.in_failed_block else _LIKELY
        if self._best is None or certainty < self._best[0]:
            text = text.strip()[:_TEXT_LENGTH]
            error = FirstError(line=line, text=text, tool=tool, weak=weak)
            self._best = (certainty, error)

    def _begin_make_failed(self, line: int, make: re.Match[str]) -> None:
        self.last_line = line
        if self.failed_command is None:
            self.failed_command = FailedCommand(
                target=make["target"][:_TEXT_LENGTH],
                command="",
                line=line,
                exit_code=int(make["code"]),
            )

    def _take_command(self, text: str) -> None:
        if self.failed_command is not None:
            command = text.strip()[:_COMMAND_LENGTH]
            self.failed_command = replace(self.failed_command, command=command)

    def _in_traceback(self, line: int, text: str) -> bool:
        """Return whether the line belongs to the open traceback."""
        self._traceback_lines += 1
        if self._traceback_lines > _TRACEBACK_LINES:
            self._traceback_indent = -1
            return False
        body = text[self._traceback_indent :]
        deeper = len(text) - len(text.lstrip(" |+>")) > self._traceback_indent
        if deeper or not body.strip():
            self.in_frames = True
            return True
        if _EXCEPTION.match(body) and not text[: self._traceback_indent].strip(" |+>"):
            self._exception = FirstError(line=line, text=body.strip()[:_TEXT_LENGTH], tool="python")
            self._traceback_indent = -1
            return True
        return False  # a line of another process; the exception may follow

    def _decide_exception(self, *, replaced: bool) -> None:
        """Keep the exception that ended a traceback, unless handling it raised the next one."""
        if self._exception is not None and not replaced:
            exception = self._exception
            self._keep(exception.line, exception.text, "python", weak=is_wrapper(exception.text))
        self._exception = None

    def _is_check_output(self, text: str) -> bool:
        """Return whether the line is output of a try_compile check of CMake."""
        self.in_check = self._in_try_compile
        if _TRY_COMPILE_BEGIN.match(text):
            self._in_try_compile = self.in_check = True
        elif self._in_try_compile and _TRY_COMPILE_END.match(text):
            self._in_try_compile = False
        return self.in_check
