"""Logs for `test_log_outcome`: successful builds with misleading words, and failed builds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Failure:
    """What a diagnosis of the log must say."""

    log: str
    error: str = ""
    """Part of the first error; empty where no line states one."""
    root: str = ""
    """Id of the known cause; empty for an unknown one."""
    target: str = ""
    command: str = ""
    """The beginning of the failed command; empty where the log does not show it."""


SUCCEEDED: dict[str, str] = {
    "names of files": """\
gcc -Wall -Werror -Werror=return-type -Wno-error=format -c error.c -o error.o
gcc -c fatal_error.c -o fatal_error.o
copying torch/_errors.py -> build/lib/torch/_errors.py
ar rcs liberror.a error.o fatal_error.o
""",
    "counts that are zero": """\
Linting 120 files
0 errors, 3 warnings
Errors: 0
errors=0 failures=0
No errors found.
Build completed with 0 error(s)
Tests FAILED: 0
FAILED: 0
""",
    "checks of a configuration that fail": """\
-- Performing Test HAS_WERROR_RETURN_TYPE - Failed
-- Looking for dlopen - not found
-- Could NOT find MKL (missing: MKL_LIBRARIES)
Change Dir: /build/CMakeFiles/CMakeScratch/TryCompile-5tYOsv
Run Build Command(s): /usr/bin/ninja cmTC_4816f
FAILED: CMakeFiles/cmTC_4816f.dir/src.c.o
/usr/bin/cc -o CMakeFiles/cmTC_4816f.dir/src.c.o -c src.c
src.c:3:10: fatal error: foo.h: No such file or directory
ninja: build stopped: subcommand failed.
-- Configuring done
-- Generating done
-- Build files have been written to: /build/out
""",
    "autoconf": """\
checking for gcc option to accept ISO C11... none needed
checking for error_at_line... no
checking whether the compiler reports an error for unknown options... yes
conftest.c:11:10: fatal error: ac_nonexistent.h: No such file or directory
configure: WARNING: unrecognized options: --with-error
configure: creating ./config.status
config.status: creating Makefile
""",
    "tests that are called error": """\
============================= test session starts ==============================
tests/test_error.py::test_error PASSED                                    [ 33%]
tests/test_error.py::test_fatal_error PASSED                              [ 66%]
tests/test_failed.py::test_raises_RuntimeError PASSED                     [100%]
----------------------------- Captured stderr call -----------------------------
error: cannot open 'nothing': No such file or directory
RuntimeError: expected by the test
============================== 3 passed in 0.12s ===============================
""",
    "unittest": """\
test_error (tests.Errors) ... ok
test_failure_is_reported (tests.Errors) ... ok
----------------------------------------------------------------------
Ran 2 tests in 0.001s

OK
""",
    "googletest": """\
[ RUN      ] Error.Fatal
error: this message is expected
[       OK ] Error.Fatal (0 ms)
[==========] 1 test from 1 test suite ran. (0 ms total)
[  PASSED  ] 1 test.
""",
    "ctest": """\
    Start 1: error_test
1/2 Test #1: error_test .......................   Passed    0.01 sec
    Start 2: fatal_test
2/2 Test #2: fatal_test .......................   Passed    0.02 sec
100% tests passed, 0 tests failed out of 2
""",
    "statistics of a compiler cache": """\
[40/40] Linking CXX shared library lib/liberror.so
cache directory                     /build/ccache
cache hit (direct)                  120
compile failed                        3
compiler produced empty output        0
internal error                        0
bad compiler arguments                1
Errors                                0
Cache write errors                    0
""",
    "warnings": """\
[1/2] Building CXX object CMakeFiles/x.dir/error.cpp.o
/build/x/error.cpp:3:5: warning: this will become an error: in a later release [-Wfuture]
/build/x/error.cpp:3:5: note: error: declared here
ld: warning: cannot find entry symbol _start; defaulting to 0
CMake Warning at CMakeLists.txt:3 (message):
  error: this is only a warning
[2/2] Linking CXX executable x
""",
    "make -k without any failure": """\
make -k -j4 all
[ 50%] Building CXX object CMakeFiles/x.dir/error.cpp.o
[100%] Linking CXX executable x
[100%] Built target x
""",
    "an error that make ignores": """\
rm build/old.o
rm: cannot remove 'build/old.o': No such file or directory
make: [Makefile:12: clean] Error 1 (ignored)
cc -c a.c -o a.o
""",
    "ninja: an attempt that failed, and was resumed": """\
[1/3] Building CXX object CMakeFiles/x.dir/a.cpp.o
[2/3] Building CXX object CMakeFiles/x.dir/b.cpp.o
FAILED: CMakeFiles/x.dir/b.cpp.o
/usr/bin/c++ -c /build/x/b.cpp -o CMakeFiles/x.dir/b.cpp.o
c++: fatal error: Killed signal terminated program cc1plus
compilation terminated.
ninja: build stopped: subcommand failed.
[1/2] Building CXX object CMakeFiles/x.dir/b.cpp.o
[2/2] Linking CXX shared library libx.so
""",
    "make: an attempt that failed, and was resumed": """\
[ 33%] Building CXX object CMakeFiles/x.dir/a.cpp.o
[ 66%] Building CXX object CMakeFiles/x.dir/b.cpp.o
/build/x/b.cpp:3:1: error: expected ';' before '}' token
make[2]: *** [CMakeFiles/x.dir/build.make:90: CMakeFiles/x.dir/b.cpp.o] Error 1
make[1]: *** [CMakeFiles/Makefile2:83: CMakeFiles/x.dir/all] Error 2
make: *** [Makefile:136: all] Error 2
[ 33%] Built target y
[ 66%] Building CXX object CMakeFiles/x.dir/b.cpp.o
[100%] Linking CXX shared library libx.so
[100%] Built target x
""",
    "pip: a wheel that failed first, and then did not": """\
  Building wheel for x (pyproject.toml): finished with status 'error'
  error: subprocess-exited-with-error
  ERROR: Failed building wheel for x
ERROR: Failed to build installable wheels for some pyproject.toml based projects (x)
Processing /build/x
  Building wheel for x (pyproject.toml): finished with status 'done'
Successfully built x
Installing collected packages: x
Successfully installed x-1.0
""",
    "pip: retries of a download": """\
WARNING: Retrying (Retry(total=4)) after connection broken by 'NameResolutionError("error")'
Collecting error-handling==1.0
  Downloading error_handling-1.0-py3-none-any.whl (10 kB)
Installing collected packages: error-handling
Successfully installed error-handling-1.0
""",
    "a program whose own output looks like an error": """\
[1/2] Generating tables
error: 3 entries were dropped (harmless)
RuntimeError: caught and handled
[2/2] Linking CXX shared library libtables.so
""",
    "an installation after a build": """\
[12/12] Linking CXX shared library liberror.so
-- Install configuration: "Release"
-- Installing: /usr/local/lib/liberror.so
-- Up-to-date: /usr/local/include/error.h
""",
    "nothing at all": "",
    "commands that only mention errors": """\
+ grep -c 'error:' build.log
+ test -f /build/errors.txt
$ echo "fatal: nothing"
# error: a comment
""",
    "Torchyard: a command that went on after one that complained": """\
[12:00:00] $ git describe --tags
fatal: No names found, cannot describe anything.
[12:00:01] $ cmake --build out
[1/1] Linking CXX shared library libx.so
""",
}

_CC = "/usr/bin/c++ -O2 -c /build/x/b.cpp -o b.cpp.o"

FAILED: dict[str, Failure] = {
    "ninja": Failure(
        log=f"""\
[2/3] Building CXX object b.cpp.o
FAILED: b.cpp.o
{_CC}
/build/x/b.cpp:3:1: error: expected ';' before '}}' token
ninja: build stopped: subcommand failed.
""",
        error="expected ';'",
        target="b.cpp.o",
        command=_CC,
    ),
    "ninja: the error follows at once": Failure(
        log="""\
[2/3] Building CXX object b.cpp.o
FAILED: b.cpp.o
/build/x/b.cpp:3:1: error: expected ';' before '}' token
ninja: build stopped: subcommand failed.
""",
        error="expected ';'",
        target="b.cpp.o",
    ),
    "ninja -v: the command comes before": Failure(
        log=f"""\
[2/3] {_CC}
FAILED: b.cpp.o
/build/x/b.cpp: In function 'int f()':
/build/x/b.cpp:3:1: error: expected ';' before '}}' token
ninja: build stopped: subcommand failed.
""",
        error="expected ';'",
        target="b.cpp.o",
        command=_CC,
    ),
    "ninja: the linker's words follow at once": Failure(
        log="""\
FAILED: libx.so
/usr/bin/ld: cannot find -lmissing: No such file or directory
collect2: error: ld returned 1 exit status
ninja: build stopped: subcommand failed.
""",
        error="cannot find -lmissing",
        root="library-not-found",
        target="libx.so",
    ),
    "ninja: a file that was included follows": Failure(
        log="""\
FAILED: [code=1] b.cpp.o
In file included from /build/x/b.cpp:1:
/build/x/a.h:2:10: fatal error: png.h: No such file or directory
ninja: build stopped: subcommand failed.
""",
        error="png.h: No such file",
        root="header-missing",
        target="b.cpp.o",
    ),
    "ninja: a traceback follows at once": Failure(
        log="""\
FAILED: generated.h
Traceback (most recent call last):
  File "/build/x/gen.py", line 2, in <module>
    raise ValueError("no such operator")
ValueError: no such operator
ninja: build stopped: subcommand failed.
""",
        error="ValueError: no such operator",
        target="generated.h",
    ),
    "ninja: Killed follows at once": Failure(
        log="FAILED: b.o\nKilled\nninja: build stopped: subcommand failed.\n",
        error="Killed",
        root="process-killed",
        target="b.o",
    ),
    "ninja: a command without a folder or options": Failure(
        log="""\
FAILED: out.txt
touch out.txt
touch: cannot touch 'out.txt': Permission denied
ninja: build stopped: subcommand failed.
""",
        error="Permission denied",
        root="permission-denied",
        target="out.txt",
        command="touch out.txt",
    ),
    "ninja: a command of a shell": Failure(
        log="""\
FAILED: libx.so
: && /usr/bin/c++ -shared a.o -o libx.so && :
/usr/bin/ld: a.o: undefined reference to `f'
collect2: error: ld returned 1 exit status
ninja: build stopped: subcommand failed.
""",
        error="undefined reference to `f'",
        root="undefined-reference",
        target="libx.so",
        command=": && /usr/bin/c++ -shared",
    ),
    "ninja: two attempts, the last one decides": Failure(
        log=f"""\
[1/2] Building CXX object b.cpp.o
FAILED: b.cpp.o
{_CC}
c++: fatal error: Killed signal terminated program cc1plus
ninja: build stopped: subcommand failed.
[1/2] Building CXX object b.cpp.o
[2/2] Linking CXX shared library libx.so
FAILED: libx.so
/usr/bin/c++ -shared b.cpp.o -lmissing -o libx.so
/usr/bin/ld: cannot find -lmissing: No such file or directory
ninja: build stopped: subcommand failed.
""",
        error="cannot find -lmissing",
        root="library-not-found",
        target="libx.so",
        command="/usr/bin/c++ -shared",
    ),
    "ninja -k: others went on": Failure(
        log=f"""\
[1/3] Building CXX object b.cpp.o
FAILED: b.cpp.o
{_CC}
/build/x/b.cpp:3:1: error: no
[2/3] Building CXX object c.cpp.o
[3/3] Building CXX object d.cpp.o
ninja: build stopped: cannot make progress due to previous errors.
""",
        error="error: no",
        target="b.cpp.o",
        command=_CC,
    ),
    "make -k: others went on": Failure(
        log="""\
[ 10%] Building CXX object b.cpp.o
/build/x/b.cpp:3:1: error: no
make[2]: *** [CMakeFiles/x.dir/build.make:90: b.cpp.o] Error 1
[100%] Linking CXX executable y
[100%] Built target y
make[1]: Target 'all' not remade because of errors.
make: *** [Makefile:136: all] Error 2
""",
        error="error: no",
        target="b.cpp.o",
    ),
    "a test that fails after a good build": Failure(
        log="""\
[3/3] Linking CXX shared library libx.so
Successfully installed x-1.0
============================= test session starts ==============================
tests/test_x.py F                                                        [100%]
E       AssertionError: 1 != 2
=========================== short test summary info ============================
FAILED tests/test_x.py::test_x - AssertionError: 1 != 2
========================= 1 failed, 2 passed in 0.10s ==========================
""",
        error="",
    ),
    "a second package fails after a first one": Failure(
        log="""\
error: optional accelerator was not built
Successfully installed a-1.0
  error: subprocess-exited-with-error
  b.c:1:1: error: unknown type name 'x'
  ERROR: Failed building wheel for b
Successfully built c
ERROR: Failed to build installable wheels for some pyproject.toml based projects (b)
""",
        error="unknown type name 'x'",
    ),
    "an error of CMake": Failure(
        log="""\
-- Performing Test HAS_X - Failed
CMake Error at CMakeLists.txt:8 (message):
  The option USE_X needs an X.


-- Configuring incomplete, errors occurred!
""",
        error="The option USE_X needs an X.",
    ),
    "a configuration that fails after one that did not": Failure(
        log="""\
-- Build files have been written to: /build/a
CMake Error at CMakeLists.txt:8 (message):
  The option USE_X needs an X.

-- Configuring incomplete, errors occurred!
""",
        error="The option USE_X needs an X.",
    ),
    "BLAS was lost at configure time": Failure(
        log="""\
--   USE_BLAS              : 0
--   USE_LAPACK            : 0
-- Build files have been written to: /build/pytorch/build
[9/9] Linking CXX shared library lib/libtorch_python.so
Successfully installed torch-2.6.0
RuntimeError: torch.linalg.solve: PyTorch was compiled without LAPACK
""",
        error="compiled without LAPACK",
        root="component-left-out",
    ),
    "MKL was lost at configure time": Failure(
        log="""\
-- MKL library not found
-- Build files have been written to: /build/pytorch/build
[9/9] Linking CXX shared library lib/libtorch_python.so
RuntimeError: fft: ATen not compiled with MKL support
""",
        error="not compiled with MKL",
        root="component-left-out",
    ),
    "NCCL was lost at configure time": Failure(
        log="""\
-- Could NOT find NCCL (missing: NCCL_INCLUDE_DIR NCCL_LIBRARY)
-- Could NOT find MPI_C (missing: MPI_C_LIB_NAMES)
[9/9] Linking CXX shared library lib/libtorch_python.so
RuntimeError: Distributed package doesn't have NCCL built in
""",
        error="doesn't have NCCL",
        root="component-left-out",
    ),
    "CUDA was switched off": Failure(
        log="""\
disabling CUDA because NOT USE_CUDA is set
[9/9] Linking CXX shared library lib/libtorch_python.so
RuntimeError: PyTorch is not linked with support for cuda devices
""",
        error="not linked with support for cuda",
        root="component-left-out",
    ),
    "what was lost is something else": Failure(
        log="""\
-- Could NOT find MPI_C (missing: MPI_C_LIB_NAMES)
--   USE_MPI               : OFF
[9/9] Linking CXX shared library lib/libtorch_python.so
AssertionError: Torch not compiled with CUDA enabled
""",
        error="not compiled with CUDA",
        root="component-missing",
    ),
    "a shell that finds no program": Failure(
        log="Successfully installed cmake-4.0\n/bin/sh: 1: nvcc: not found\n",
        error="nvcc: not found",
        root="cuda-not-found",
    ),
}
