"""The first real error, and lines that only resemble errors."""

from __future__ import annotations

import pytest

from torchyard.builds.diagnosis.diagnose import diagnose
from torchyard.builds.diagnosis.first_error import is_error
from torchyard.builds.diagnosis.model import FirstError


def first(log: str) -> FirstError:
    found = diagnose(log).first_error
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("tool", "line"),
    [
        ("compiler", "src/a.cpp:12:34: error: expected ';' before 'return'"),
        ("compiler", "src/a.cpp:12: error: no"),
        ("compiler", "/build/my project/a.cpp:1:10: fatal error: png.h: No such file or directory"),
        ("compiler", "a.c:9:1: internal compiler error: in extract_insn, at recog.cc:2812"),
        ("compiler", 'kernel.cu(27): error: identifier "foo" is undefined'),
        ("compiler", 'a.cpp(3): catastrophic error: cannot open source file "x.h"'),
        ("compiler", 'a.cu(12): error #20: identifier "x" is undefined'),
        ("compiler", "nvcc fatal   : Unsupported gpu architecture 'compute_30'"),
        ("compiler", "nvcc error   : 'cicc' died due to signal 9 (Kill signal)"),
        ("compiler", "ptxas fatal   : Unresolved extern function 'f'"),
        ("compiler", "ptxas /tmp/x.ptx, line 4; error   : Unknown modifier"),
        ("compiler", "c++: fatal error: Killed signal terminated program cc1plus"),
        ("compiler", "aarch64-linux-gnu-g++-12: error: unrecognized command-line option '-x'"),
        ("compiler", "clang: error: linker command failed: no such file"),
        ("compiler", "cc1plus: error: bad value 'x' for '-march=' switch"),
        ("assembler", "/tmp/ccA.s:12: Error: no such instruction: `vpaddd'"),
        ("linker", "main.cpp:(.text+0x38): undefined reference to `f()'"),
        ("linker", "/usr/bin/ld: cannot find -lopenblas: No such file or directory"),
        ("linker", "ld.lld: error: undefined symbol: f"),
        ("linker", "mold: error: undefined symbol: f"),
        ("linker", "a.o:(.data+0x0): multiple definition of `x'; b.o: first defined here"),
        ("linker", "huge.c:(.text+0xc): relocation truncated to fit: R_X86_64_PC32 against `.b'"),
        ("linker", "collect2: fatal error: ld terminated with signal 9 [Killed]"),
        ("loader", "./t: error while loading shared libraries: libx.so.1: cannot open it"),
        ("ninja", "ninja: error: loading 'build.ninja': No such file or directory"),
        ("ninja", "ninja: fatal: pipe: Too many open files"),
        ("make", "make[2]: *** No rule to make target 'x.c', needed by 'x.o'.  Stop."),
        ("make", "Makefile:12: *** missing separator.  Stop."),
        ("git", "fatal: Remote branch v9 not found in upstream origin"),
        ("program", "error: patch failed: setup.py:1"),
        ("apt", "E: Unable to locate package nonesuch"),
        ("pip", "ERROR: No matching distribution found for torch==9"),
        ("pip", "  error: externally-managed-environment"),
        ("curl", "curl: (6) Could not resolve host: github.com"),
        ("shell", "/bin/sh: 1: nvcc: not found"),
        ("shell", "bash: line 3: cmake: command not found"),
        ("shell", "bash: line 1: 4711 Segmentation fault      ./protoc --version"),
        ("shell", "Killed"),
        ("python", "python3: can't open file 'setup.py': [Errno 2] No such file or directory"),
        ("python", "Fatal Python error: Segmentation fault"),
        ("python", "LibMambaUnsatisfiableError: Encountered problems while solving:"),
        ("configure", "configure: error: no acceptable C compiler found in $PATH"),
        ("scons", "scons: *** Do not know how to make File target `x'.  Stop."),
        ("cache", "sccache: error: Timed out waiting for server startup"),
        ("patch", "Hunk #1 FAILED at 1."),
        ("program", "/usr/bin/ar: libx.a: No space left on device"),
        ("program", "tar: Error is not recoverable: exiting now"),
        ("program", "cp: cannot stat 'x': No such file or directory"),
        ("program", "LLVM ERROR: out of memory"),
        ("program", "error[E0425]: cannot find value `x` in this scope"),
        ("program", "protoc: error: unknown flag"),
    ],
)
def test_errors_are_seen_and_their_tool_is_named(tool: str, line: str) -> None:
    log = f"-- Configuring done\n{line}\nmore text\n"
    found = first(log)
    assert (found.line, found.tool) == (2, tool)
    assert found.text == " ".join(line.split("\n")).strip()


@pytest.mark.parametrize(
    "line",
    [
        "[12/345] /usr/bin/c++ -Werror -Werror=return-type -c error.cpp -o error.cpp.o",
        "[ 50%] Building CXX object CMakeFiles/x.dir/error.cpp.o",
        "/usr/bin/c++ -Wall -Werror=return-type -Wno-error=pedantic -c /build/error.cpp",
        "-- Performing Test HAS_WERROR_FORMAT - Failed",
        "-- Could NOT find Atlas (missing: Atlas_BLAS_LIBRARY) ",
        "a.cpp:1:2: warning: this will be an error: in C++26 [-Wdeprecated]",
        "a.cpp:1:2: note: error: was here",
        "make: *** [Makefile:3: s6.o] Error 1",
        "make[2]: *** Waiting for unfinished jobs....",
        "gmake[1]: *** [CMakeFiles/Makefile2:83: all] Error 2",
        "ninja: build stopped: subcommand failed.",
        "compilation terminated.",
        "1 error generated.",
        "copying torch/errors.py -> build/lib/torch/errors.py",
        "WARNING: Retrying after connection broken by NameResolutionError: error",
        "  10 | #error nothing",
        "# error: a comment",
        "CMakeFiles/cmTC_4816f.dir/src.c.o: undefined reference to `f'",
        "/build/CMakeFiles/CMakeScratch/TryCompile-5tYOsv/src.cxx:2:3: error: no",
        "conftest.c:11:10: fatal error: ac_nonexistent.h: No such file or directory",
        "ld: warning: cannot find entry symbol _start",
    ],
)
def test_lines_that_resemble_an_error_are_skipped(line: str) -> None:
    found = diagnose(f"{line}\n").first_error
    assert found is None, found
    assert first(f"{line}\nx.c:1:1: error: real\n").line == 2


@pytest.mark.parametrize(
    "line",
    [
        "collect2: error: ld returned 1 exit status",
        "clang++: error: linker command failed with exit code 1 (use -v to see invocation)",
        "error: command '/usr/bin/g++' failed with exit code 1",
        "ERROR: Failed building wheel for torch",
        "fatal: not a git repository (or any of the parent directories): .git",
        "  error: subprocess-exited-with-error",
    ],
)
def test_a_consequence_counts_only_when_there_is_nothing_else(line: str) -> None:
    assert is_error(line) is not None
    assert first(f"{line}\n").line == 1
    assert first(f"{line}\nx.c:1:1: error: real\n").line == 2


def test_an_error_in_a_failed_block_takes_precedence_over_one_before() -> None:
    log = """\
error: could not read the cache, going on without
[1/2] Building CXX object a.o
FAILED: a.o
/usr/bin/c++ -c a.cpp
a.cpp:1:1: error: this one
[2/2] Building CXX object b.o
b.cpp:1:1: error: not this one
ninja: build stopped: subcommand failed.
"""
    assert first(log).line == 5
    failed = diagnose(log).failed_command
    assert failed is not None
    assert (failed.target, failed.command, failed.line) == ("a.o", "/usr/bin/c++ -c a.cpp", 3)


def test_a_failed_block_ends_at_the_next_progress_line() -> None:
    log = """\
FAILED: a.o
/usr/bin/c++ -c a.cpp
no words that say why
[2/2] Building CXX object b.o
b.cpp:1:1: error: of another file
c.cpp:1:1: error: later
"""
    assert first(log).line == 5


def test_only_the_first_failed_command_is_kept() -> None:
    log = "FAILED: a.o\ncc -c a.c\nFAILED: [code=2] b.o\ncc -c b.c\n"
    failed = diagnose(log).failed_command
    assert failed is not None
    assert (failed.target, failed.command, failed.exit_code) == ("a.o", "cc -c a.c", None)


def test_the_last_line_of_a_traceback_is_the_error() -> None:
    log = """\
Traceback (most recent call last):
  File "/build/gen.py", line 2, in <module>
    raise ValueError("error: not this line")
ValueError: this line
"""
    assert first(log) == FirstError(line=4, text="ValueError: this line", tool="python")


def test_an_exception_raised_while_handling_another_replaces_it() -> None:
    log = """\
Traceback (most recent call last):
  File "a.py", line 1, in <module>
KeyError: 'x'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "a.py", line 2, in <module>
ImportError: no backend named x
"""
    assert first(log).text == "ImportError: no backend named x"


def test_an_exception_that_caused_another_is_the_error() -> None:
    log = """\
Traceback (most recent call last):
  File "a.py", line 1, in <module>
KeyError: 'x'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "a.py", line 2, in <module>
RuntimeError: cannot load
"""
    assert first(log).text == "KeyError: 'x'"


def test_an_exception_that_only_wraps_a_failed_program_is_weak() -> None:
    log = """\
Traceback (most recent call last):
  File "setup.py", line 1, in <module>
subprocess.CalledProcessError: Command '['ninja', '-v']' returned non-zero exit status 1.
a.cpp:1:1: error: printed later because it was buffered
"""
    assert first(log).line == 4


def test_tracebacks_inside_the_output_of_pip_are_read() -> None:
    log = """\
  error: subprocess-exited-with-error

  × Getting requirements to build wheel did not run successfully.
  │ exit code: 1
  ╰─> [3 lines of output]
      Traceback (most recent call last):
        File "<string>", line 1, in <module>
          import nonesuch_tool
      AttributeError: module 'x' has no attribute 'y'
      [end of output]
"""
    assert first(log).text == "AttributeError: module 'x' has no attribute 'y'"


def test_lines_of_other_processes_inside_a_traceback_do_not_end_it() -> None:
    log = """\
Traceback (most recent call last):
  File "gen.py", line 3, in <module>
[7/9] Building CXX object x.o
make[1]: Leaving directory '/build'
    main()
ValueError: late
"""
    assert first(log) == FirstError(line=6, text="ValueError: late", tool="python")


def test_code_quoted_by_a_traceback_shows_no_cause() -> None:
    log = """\
Traceback (most recent call last):
  File "x.py", line 3, in <module>
    raise OSError("No space left on device")
ValueError: something else
"""
    assert diagnose(log).causes == ()


def test_a_message_of_cmake_is_put_together_again() -> None:
    log = """\
CMake Error at CMakeLists.txt:8 (message):
  The option USE_X needs an X, and
  there is none

  in this folder.
Call Stack (most recent call first):
  cmake/deps.cmake:3 (include)


-- Configuring incomplete, errors occurred!
"""
    assert first(log).text == (
        "CMake Error at CMakeLists.txt:8 (message): The option USE_X needs an X, and there is none "
        "in this folder."
    )


def test_a_cause_whose_words_cmake_has_wrapped_is_found() -> None:
    log = """\
CMake Error at third_party/x/CMakeLists.txt:1 (cmake_minimum_required):
  Compatibility with
  CMake < 3.5 has been removed
  from CMake.

"""
    (cause,) = diagnose(log).causes
    assert cause.id == "cmake-too-new"
    assert cause.evidence[0].line == 1
    assert cause.matches == 1


def test_a_warning_of_cmake_is_not_an_error() -> None:
    log = "CMake Warning at x.cmake:1 (message):\n  error: nothing\n  is wrong\n\n-- done\n"
    assert diagnose(log).first_error is None


def test_a_cmake_message_at_the_very_end_is_not_lost() -> None:
    assert first("CMake Error at a:1 (message):\n  broken").text.endswith("broken")
