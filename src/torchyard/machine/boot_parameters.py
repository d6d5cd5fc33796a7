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
from torchyard.errors import ResultsDamaged, TorchyardError, UsageError
from torchyard.files.safe_writing import replace_file, to_json_text
from torchyard.machine.quieting.journal import cannot_keep
from torchyard.machine.system.file_tree import FileTree

_CPU: Final = "sys/devices/system/cpu"
_GRUB_FILE: Final = "etc/default/grub"
_ADDED_BY_GRUB: Final = ("BOOT_IMAGE", "root", "ro", "rw", "initrd")
"""What stands in /proc/cmdline and comes from the loader or from grub's other variables."""
_ADDED_BY_LOADER: Final = ("BOOT_IMAGE", "initrd")


@dataclass(frozen=True, kw_only=True)
class BootWish:
    """What the next start of the machine should bring."""

    cores: tuple[int, ...] = ()
    """Set apart from the start; none when empty."""
    cstates: bool = False
    """Whether deep idle states are forbidden."""
    boot: str = ""
    """The start of the machine in which this was wished."""


@dataclass(frozen=True, kw_only=True)
class BootLines:
    """Text for the files of boot loaders, and the commands that make it count."""

    words: tuple[str, ...]
    grub_line: str
    grub_from: str
    """Where the rest of that line comes from."""
    loader_line: str
    """For systemd-boot and kernel-install: the whole line."""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Effect:
    """Whether one word of the boot line is there, and whether the kernel follows it."""

    word: str
    on_line: bool
    in_force: bool | None
    """None when the kernel shows nothing about it."""
    shown: str
    """What was looked at."""

    @property
    def good(self) -> bool:
        """On the line, and not shown to be without effect."""
        return self.on_line and self.in_force is not False


def wanted_words(files: FileTree, wish: BootWish) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The words, and what the user should know before the restart."""
    words: list[str] = []
    warnings: list[str] = []
    if wish.cores:
        listed = cpu_list(wish.cores)
        # Flags must name `domain` when there are any; managed_irq keeps queues of devices away.
        words += [f"isolcpus=managed_irq,domain,{listed}", f"nohz_full={listed}"]
        words += [f"rcu_nocbs={listed}"]
        warnings += _isolation_warnings(files, wish.cores)
    if wish.cstates:
        found, warning = _idle_words(files)
        words += found
        warnings += [warning] if warning else []
    return tuple(words), tuple(warnings)


def boot_lines(files: FileTree, wish: BootWish) -> BootLines:
    """What to put where. Existing words stay, ours replace those of the same name."""
    words, warnings = wanted_words(files, wish)
    now = _split(files.read("proc/cmdline").value or "")
    grub = _grub_default(files)
    if grub is None:
        base = [_for_shell(word) for word in now if _name(word) not in _ADDED_BY_GRUB]
        grub_from = "/proc/cmdline, without what grub adds by itself"
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


def merged(there: Iterable[str], wanted: Iterable[str]) -> list[str]:
    """The words that are there without those of a wanted name and without repeats, then the wanted.

    A kernel takes some words several times (`console=`), so only exact repeats go. What follows
    `--` is not the kernel's but init's, and stays behind the wanted words.
    """
    there, wanted = list(there), list(wanted)
    end = there.index("--") if "--" in there else len(there)
    names = {_name(word) for word in wanted}
    kept = [word for word in dict.fromkeys(there[:end]) if _name(word) not in names]
    return [*kept, *wanted, *there[end:]]


def effects(files: FileTree, wish: BootWish) -> tuple[Effect, ...]:
    """For each wanted word, what the running kernel shows."""
    line = _split(files.read("proc/cmdline").value or "")
    line = line[: line.index("--")] if "--" in line else line
    return tuple(_effect(files, word, line) for word in wanted_words(files, wish)[0])


def _effect(files: FileTree, word: str, line: list[str]) -> Effect:
    name, value = _name(word), word.partition("=")[2]
    on_line = word in line
    if name in ("isolcpus", "nohz_full"):
        path = f"{_CPU}/{'isolated' if name == 'isolcpus' else name}"
        wanted = cpus_of_list(value.removeprefix("managed_irq,domain,"))
        found = files.read(path)
        shown = f"/{path}: {found.value or 'nothing'}" if found.value is not None else found.because
        return Effect(word=word, on_line=on_line, in_force=_holds(found.value, wanted), shown=shown)
    if name.endswith(".max_cstate"):
        path = f"sys/module/{name.partition('.')[0]}/parameters/max_cstate"
        number = files.read(path)
        if number.number is None:
            return Effect(word=word, on_line=on_line, in_force=None, shown=number.because)
        in_force = number.number <= int(value)
        return Effect(
            word=word, on_line=on_line, in_force=in_force, shown=f"/{path}: {number.value}"
        )
    return Effect(word=word, on_line=on_line, in_force=None, shown="/proc/cmdline")


def _holds(text: str | None, wanted: tuple[int, ...]) -> bool:
    try:
        return set(wanted) <= set(cpus_of_list(text or ""))
    except ValueError:  # "(null)" on some kernels
        return False


def _isolation_warnings(files: FileTree, cores: tuple[int, ...]) -> list[str]:
    unbalanced = (
        "isolcpus has no load balancing: threads of OpenMP pile up on one core unless each is "
        "pinned (OMP_PROC_BIND=true OMP_PLACES=cores), and nothing runs there without taskset"
    )
    warnings = [unbalanced]
    if 0 in cores:
        warnings.append("the kernel keeps processor 0 for its own work: leave it out")
    driver = files.read(f"{_CPU}/cpufreq/policy0/scaling_driver").value or ""
    if driver.startswith("intel_pstate") or files.exists(f"{_CPU}/intel_pstate/status"):
        warnings.append(
            "nohz_full and intel_pstate clash: without ticks the driver may not raise the clock; "
            "fix the clock with `torchyard machine tune`, or add intel_pstate=disable"
        )
    if not files.exists(f"{_CPU}/nohz_full"):
        warnings.append(
            "this kernel shows no nohz_full: it may be built without it and ignore the word"
        )
    return warnings


def _idle_words(files: FileTree) -> tuple[list[str], str]:
    text = files.read("proc/cpuinfo").value or ""
    vendor = re.search(r"^vendor_id\s*:\s*(\S+)", text, re.MULTILINE)
    if vendor is not None and vendor[1] == "GenuineIntel":
        return ["intel_idle.max_cstate=1", "processor.max_cstate=1"], ""
    if vendor is not None:
        return ["processor.max_cstate=1"], ""
    return [], (
        "this processor has no word against deep idle states: "
        "`torchyard machine tune` holds them off without a restart"
    )


def _replaced(now: list[str], words: tuple[str, ...]) -> list[str]:
    names = {_name(word) for word in words}
    old = [word for word in now if _name(word) in names and word not in words]
    return [f"replaces {word}, which is on the line now" for word in old]


def _grub_default(files: FileTree) -> str | None:
    """What the variable has now, as it stands between double quotes; the last assignment counts."""
    text = files.read(_GRUB_FILE).value
    found = re.findall(
        r"""^\s*GRUB_CMDLINE_LINUX_DEFAULT=("(?:[^"\\]|\\.)*"|'[^']*'|\S*)""",
        text or "",
        re.MULTILINE,
    )
    if not found:
        return None
    raw = str(found[-1])
    # The file is a shell script: what is between double quotes now can stay there as it is.
    return raw[1:-1] if raw.startswith('"') else _for_shell(raw.strip("'"))


def _for_shell(text: str) -> str:
    """As it must be written between double quotes of a shell."""
    return re.sub(r'([\\"$`])', r"\\\1", text)


def _name(word: str) -> str:
    # The kernel takes - and _ in names for the same.
    return word.partition("=")[0].replace("-", "_")


def _split(line: str) -> list[str]:
    """Words of a boot line; blanks inside double quotes belong to a word."""
    return re.findall(r'(?:[^\s"\\]|\\.|"[^"]*")+', line)


_FILE: Final = "boot-wish.json"


def remember_boot_wish(folder: Path, wish: BootWish) -> None:
    """Keep it until another one is remembered; raises NotAllowed where nothing can be kept."""
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        replace_file(folder / _FILE, to_json_text(encode(wish)) + "\n")
    except OSError as error:
        raise cannot_keep(folder, error) from error
    except TorchyardError as error:
        cause = error.__cause__
        raise (cannot_keep(folder, cause) if isinstance(cause, OSError) else error) from error


def recall_boot_wish(folder: Path) -> BootWish | None:
    """The last one that was remembered; None when there is none."""
    path = folder / _FILE
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return decode(BootWish, document, where=str(path), strict=False)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, UsageError) as error:
        raise ResultsDamaged(
            f"{path} cannot be read", why=str(error), hint="remove it, and ask again"
        ) from error
