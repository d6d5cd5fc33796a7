"""Kernel command-line parameters for measuring: what to add, how to merge it, what took effect.

Never writes a boot loader's configuration, because a wrong line keeps a machine from booting: the
lines are printed for the user. The request is remembered beside the journal, so that its effect can
be checked after the next boot.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from torchyard.core.cpu_lists import cpu_list, cpus_of_list
from torchyard.core.records import decode, encode
from torchyard.errors import ResultsDamaged, UsageError
from torchyard.files.safe_writing import replace_file, to_json_text
from torchyard.machine.quieting.journal import journal_errors
from torchyard.machine.system.file_tree import CPU, FileTree

_GRUB_FILE: Final = "etc/default/grub"
_ADDED_BY_GRUB: Final = ("BOOT_IMAGE", "root", "ro", "rw", "initrd")
"""Parameters in /proc/cmdline that come from the loader or from other GRUB variables."""
_ADDED_BY_LOADER: Final = ("BOOT_IMAGE", "initrd")


@dataclass(frozen=True, kw_only=True)
class BootRequest:
    """Kernel parameters requested for the next boot."""

    cores: tuple[int, ...] = ()
    """CPUs isolated at boot; empty: none."""
    cstates: bool = False
    """Whether deep idle states are disabled."""
    boot: str = ""
    """Boot ID at the time of the request."""


@dataclass(frozen=True, kw_only=True)
class BootLines:
    """Lines for the configuration of boot loaders."""

    words: tuple[str, ...]
    grub_line: str
    grub_from: str
    """Source of the rest of that line."""
    loader_line: str
    """For systemd-boot and kernel-install: the whole line."""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Effect:
    """Whether one kernel parameter is on the command line, and whether it took effect."""

    word: str
    on_line: bool
    in_force: bool | None
    """None if the kernel does not report it."""
    shown: str
    """The evidence."""

    @property
    def good(self) -> bool:
        """On the command line, and not known to be ineffective."""
        return self.on_line and self.in_force is not False


def requested_parameters(
    files: FileTree, request: BootRequest
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the kernel parameters, and warnings for the user."""
    words: list[str] = []
    warnings: list[str] = []
    if request.cores:
        listed = cpu_list(request.cores)
        # With any flag, `domain` must be named; managed_irq keeps device queues away.
        words += [f"isolcpus=managed_irq,domain,{listed}", f"nohz_full={listed}"]
        words += [f"rcu_nocbs={listed}"]
        warnings += _isolation_warnings(files, request.cores)
    if request.cstates:
        idle_words, warning = _idle_words(files)
        words += idle_words
        warnings += [warning] if warning else []
    return tuple(words), tuple(warnings)


def boot_lines(files: FileTree, request: BootRequest) -> BootLines:
    """Return the lines to write. Existing parameters stay; ours replace those of the same name."""
    words, warnings = requested_parameters(files, request)
    now = _split(files.read("proc/cmdline").text)
    grub = _grub_default(files)
    if grub is None:
        base = [_for_shell(word) for word in now if _name(word) not in _ADDED_BY_GRUB]
        grub_from = "/proc/cmdline, without the parameters that GRUB adds"
    else:
        base, grub_from = _split(grub), f"/{_GRUB_FILE}"
    loader = [word for word in now if _name(word) not in _ADDED_BY_LOADER]
    return BootLines(
        words=words,
        grub_line=f'GRUB_CMDLINE_LINUX_DEFAULT="{" ".join(merged(base, words))}"',
        grub_from=grub_from,
        loader_line=" ".join(merged(loader, words)),
        warnings=(*warnings, *_replaced(now, words)),
    )


def merged(existing: Iterable[str], requested: Iterable[str]) -> list[str]:
    """Return the existing words, less duplicates and replaced names, then the requested ones.

    The kernel accepts some parameters several times (`console=`), so only exact duplicates are
    dropped. Words after `--` belong to init and stay at the end.
    """
    existing, requested = list(existing), list(requested)
    end = existing.index("--") if "--" in existing else len(existing)
    names = {_name(word) for word in requested}
    other_words = [word for word in dict.fromkeys(existing[:end]) if _name(word) not in names]
    return [*other_words, *requested, *existing[end:]]


def effects(files: FileTree, request: BootRequest) -> tuple[Effect, ...]:
    """Check each requested parameter against the running kernel."""
    line = _split(files.read("proc/cmdline").text)
    line = line[: line.index("--")] if "--" in line else line
    return tuple(_effect(files, word, line) for word in requested_parameters(files, request)[0])


def _effect(files: FileTree, word: str, line: list[str]) -> Effect:
    name, value = _name(word), word.partition("=")[2]
    in_force: bool | None = None
    shown = "/proc/cmdline"
    if name in ("isolcpus", "nohz_full"):
        path = f"{CPU}/{'isolated' if name == 'isolcpus' else name}"
        requested = cpus_of_list(value.removeprefix("managed_irq,domain,"))
        reading = files.read(path)
        shown = reading.because if reading.value is None else f"/{path}: {reading.value or 'none'}"
        in_force = set(requested) <= set(reading.cpus)  # "(null)" on some kernels
    elif name.endswith(".max_cstate"):
        path = f"sys/module/{name.partition('.')[0]}/parameters/max_cstate"
        reading = files.read(path)
        shown = reading.because or f"/{path}: {reading.value}"
        in_force = None if reading.number is None else reading.number <= int(value)
    return Effect(word=word, on_line=word in line, in_force=in_force, shown=shown)


def _isolation_warnings(files: FileTree, cores: tuple[int, ...]) -> list[str]:
    unbalanced = (
        "isolcpus disables load balancing: OpenMP threads pile up on one core unless each is "
        "pinned (OMP_PROC_BIND=true OMP_PLACES=cores), and nothing runs there without taskset"
    )
    warnings = [unbalanced]
    if 0 in cores:
        warnings.append("the kernel uses CPU 0 for housekeeping: leave it out")
    driver = files.read(f"{CPU}/cpufreq/policy0/scaling_driver").text
    if driver.startswith("intel_pstate") or files.exists(f"{CPU}/intel_pstate/status"):
        warnings.append(
            "nohz_full conflicts with intel_pstate: without ticks the driver may not raise the "
            "clock; fix the clock with `torchyard machine quiet`, or add intel_pstate=disable"
        )
    if not files.exists(f"{CPU}/nohz_full"):
        warnings.append(
            "this kernel reports no nohz_full: it may be built without it and ignore the parameter"
        )
    return warnings


def _idle_words(files: FileTree) -> tuple[list[str], str]:
    text = files.read("proc/cpuinfo").text
    vendor = re.search(r"^vendor_id\s*:\s*(\S+)", text, re.MULTILINE)
    if vendor is not None and vendor[1] == "GenuineIntel":
        return ["intel_idle.max_cstate=1", "processor.max_cstate=1"], ""
    if vendor is not None:
        return ["processor.max_cstate=1"], ""
    return [], (
        "no boot parameter disables deep idle states on this processor: "
        "`torchyard machine quiet` disables them without a reboot"
    )


def _replaced(now: list[str], words: tuple[str, ...]) -> list[str]:
    names = {_name(word) for word in words}
    old = [word for word in now if _name(word) in names and word not in words]
    return [f"replaces {word}, which is on the present command line" for word in old]


def _grub_default(files: FileTree) -> str | None:
    """Return the variable's text between double quotes; the last assignment counts."""
    text = files.read(_GRUB_FILE).value
    assignments = re.findall(
        r"""^\s*GRUB_CMDLINE_LINUX_DEFAULT=("(?:[^"\\]|\\.)*"|'[^']*'|\S*)""",
        text or "",
        re.MULTILINE,
    )
    if not assignments:
        return None
    raw = str(assignments[-1])
    # The file is a shell script: text that is between double quotes already needs no escaping.
    return raw[1:-1] if raw.startswith('"') else _for_shell(raw.strip("'"))


def _for_shell(text: str) -> str:
    """Escape text for a shell's double quotes."""
    return re.sub(r'([\\"$`])', r"\\\1", text)


def _name(word: str) -> str:
    # The kernel treats - and _ in parameter names alike.
    return word.partition("=")[0].replace("-", "_")


def _split(line: str) -> list[str]:
    """Split a kernel command line; blanks inside double quotes do not separate."""
    return re.findall(r'(?:[^\s"\\]|\\.|"[^"]*")+', line)


_REQUEST_FILE: Final = "boot-wish.json"


def save_boot_request(folder: Path, request: BootRequest) -> None:
    """Save the request for `--check`; raises NotAllowed if the folder is not writable."""
    with journal_errors(folder):
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        replace_file(folder / _REQUEST_FILE, to_json_text(encode(request)) + "\n")


def read_boot_request(folder: Path) -> BootRequest | None:
    """Return the last saved request, or None."""
    path = folder / _REQUEST_FILE
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return decode(BootRequest, document, where=str(path), strict=False)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, UsageError) as error:
        raise ResultsDamaged(
            f"cannot read {path}", why=str(error), hint="remove it and request the lines again"
        ) from error
