"""A fake kernel: a folder of files that reacts to writes as Linux does.

`FakeKernel` stands at the kernel's border only. It refuses what Linux refuses, with the same error
number, and changes what Linux changes along with a write. Rules of clocks are in `fake_clocks`,
of processors in `fake_processors`, of interrupts and control groups in `fake_cgroups`. What the kernel knows and no
file shows lies in `<root>/.kernel`, so that several processes can share one fake machine.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Literal

from tests.machine.fake_cgroups import GROUP_RULES, make_group, refusal, remove_group
from tests.machine.fake_clocks import CLOCK_RULES
from tests.machine.fake_processors import PROCESSOR_RULES
from torchyard.machine.system.file_tree import FileTree, Reading, WriteRefused

__all__ = ["NO_LATENCY_LIMIT", "FakeKernel", "refusal", "snapshot"]

HIDDEN: Final = ".kernel"
LATENCY_DEVICE: Final = "dev/cpu_dma_latency"
NO_LATENCY_LIMIT: Final = (2_000_000_000).to_bytes(4, "little")
"""PM_QOS_CPU_LATENCY_DEFAULT_VALUE: what the device says while nobody holds it."""

SYSCTL_RANGES: Final[dict[str, tuple[int, int]]] = {
    "proc/sys/kernel/randomize_va_space": (0, 2),
    "proc/sys/kernel/perf_event_max_sample_rate": (1, 2**31 - 1),
    "proc/sys/kernel/perf_cpu_time_max_percent": (0, 100),
    "proc/sys/kernel/numa_balancing": (0, 4),
    "proc/sys/kernel/nmi_watchdog": (0, 1),
    "proc/sys/kernel/watchdog": (0, 1),
    "proc/sys/kernel/timer_migration": (0, 1),
    "proc/sys/vm/swappiness": (0, 200),
}


RULES: Final = {**CLOCK_RULES, **PROCESSOR_RULES, **GROUP_RULES}


class FakeKernel(FileTree):
    """Files below a folder, with the manners of Linux."""

    def __init__(
        self,
        root: Path,
        *,
        limits: Literal["clamp", "refuse"] = "clamp",
        governor_resets_turbo: bool = False,
        offline_policies: Literal["busy", "vanish"] = "busy",
        per_cpu_interrupts: tuple[int, ...] = (),
        interrupt_refusal: int = errno.EIO,
    ) -> None:
        """`limits`: a lowest clock above the highest is clamped (5.4 and later) or refused.

        `offline_policies`: files of policies without a processor answer EBUSY (4.2 and later), or
        their folder is gone. `interrupt_refusal`: EIO, EPERM since 6.11.
        """
        super().__init__(root)
        self.limits = limits
        self.governor_resets_turbo = governor_resets_turbo
        self.offline_policies = offline_policies
        self.per_cpu_interrupts = per_cpu_interrupts
        self.interrupt_refusal = interrupt_refusal
        self._file = root / HIDDEN / "state.json"
        self._known: tuple[int, dict[str, Any]] = (0, {})
        self.accepted: list[tuple[str, str]] = []
        """Every write that was taken, in order."""
        self.refused: list[tuple[str, str]] = []
        """Every write that was not."""
        self.refusals: dict[str, int] = {}
        """Path -> error number: for writes that a test wants refused."""
        self.dies_after: int | None = None
        """Raise KeyboardInterrupt instead of the write after so many that were taken."""

    # What the product calls.

    def path(self, path: str) -> Path:
        """As `FileTree`; the latency device contains the limit that is held at that moment."""
        if path == LATENCY_DEVICE:
            self.settle_latency()
        return super().path(path)

    def read(self, path: str) -> Reading:
        """As FileTree, but a policy without a processor is busy."""
        if self._busy(path):
            return Reading(because=f"/{path}: {os.strerror(errno.EBUSY)}")
        return super().read(path)

    def write(self, path: str, value: str) -> None:
        """One write system call."""
        if self.dies_after is not None and len(self.accepted) >= self.dies_after:
            raise KeyboardInterrupt
        try:
            self._check(path)
            self._answer(path, value.strip())
        except OSError as error:
            self.refused.append((path, value))
            raise WriteRefused(path, value, error) from error
        self.accepted.append((path, value))

    def writable(self, path: str) -> bool:
        """By the bits of the file, even for root: sysfs asks them of root, too."""
        return self.exists(path) and bool(self.path(path).stat().st_mode & stat.S_IWUSR)

    def make_folder(self, path: str) -> None:
        """mkdir; below /sys/fs/cgroup the folder comes with its files."""
        try:
            make_group(self, path)
        except OSError as error:
            raise WriteRefused(path, "", error, verb="make") from error

    def remove_folder(self, path: str) -> None:
        """rmdir; below /sys/fs/cgroup the files go with the folder."""
        try:
            remove_group(self, path)
        except OSError as error:
            raise WriteRefused(path, "", error, verb="remove") from error

    # What tests call.

    def refuse(self, path: str, code: int = errno.EINVAL) -> None:
        """Refuse every write to a path from now on."""
        self.refusals[path] = code

    def snapshot(self) -> dict[str, bytes]:
        """Every file with its bytes, and every folder; what is only the kernel's own is left out."""
        self.settle_latency()
        return snapshot(self.root)

    # What rules call.

    def text(self, path: str) -> str:
        """Return the content of a file, regardless of permissions."""
        return self.path(path).read_text(encoding="utf-8").strip()

    def number(self, path: str) -> int:
        """What a file holds, as a number."""
        return int(self.text(path))

    def put(self, path: str, text: str) -> None:
        """Show a new value; the last newline stays as the tree had it."""
        place = self.path(path)
        mode = place.stat().st_mode if place.exists() else None
        newline = not place.exists() or place.read_bytes()[-1:] in (b"\n", b"")
        place.parent.mkdir(parents=True, exist_ok=True)
        # A file that is read-only for the product is no obstacle for its kernel.
        place.unlink(missing_ok=True)
        place.write_text(text + "\n" * newline, encoding="utf-8")
        if mode is not None:
            place.chmod(stat.S_IMODE(mode))

    def recall(self, key: str, fallback: Any = None) -> Any:
        """A value that only the kernel has."""
        return self._memory().get(key, fallback)

    def remember(self, key: str, value: Any) -> None:
        """Keep something that no file shows."""
        memory = {**self._memory(), key: value}
        self._file.parent.mkdir(exist_ok=True)
        self._file.write_text(json.dumps(memory), encoding="utf-8")
        self._known = (self._file.stat().st_mtime_ns, memory)

    def settle_latency(self) -> None:
        """The latency device drops a value when the last process that wrote one has closed it."""
        device = self.root / LATENCY_DEVICE
        if not device.exists() or device.read_bytes() == NO_LATENCY_LIMIT:
            return
        if not _held(device):
            device.write_bytes(NO_LATENCY_LIMIT)

    def _memory(self) -> dict[str, Any]:
        """Read again only when another process has written it."""
        try:
            written = self._file.stat().st_mtime_ns
        except FileNotFoundError:
            return {}
        if written != self._known[0]:
            self._known = (written, json.loads(self._file.read_text(encoding="utf-8")))
        return self._known[1]

    def _check(self, path: str) -> None:
        if path in self.refusals:
            raise refusal(self.refusals[path])
        if not self.path(path).is_file():
            raise refusal(errno.ENOENT)
        if self._busy(path):
            raise refusal(errno.EBUSY)
        if not self.writable(path):
            raise refusal(errno.EACCES)

    def _answer(self, path: str, value: str) -> None:
        for pattern, rule in RULES.items():
            if re.fullmatch(pattern, path):
                rule(self, path, value)
                return
        text = self.text(path)
        if path in SYSCTL_RANGES:
            self._sysctl(path, value)
        elif re.search(r"\[\S+\]", text):
            self._choose(path, text, value)
        else:
            self.put(path, value)

    def _sysctl(self, path: str, value: str) -> None:
        low, high = SYSCTL_RANGES[path]
        try:
            number = int(value, 0)
        except ValueError:
            raise refusal(errno.EINVAL) from None
        share = "proc/sys/kernel/perf_cpu_time_max_percent"
        rate = path.endswith("perf_event_max_sample_rate")
        # kernel/events/core.c: without throttling by share there is no rate to set.
        unthrottled = rate and self.exists(share) and self.number(share) in (0, 100)
        if unthrottled or not low <= number <= high:
            raise refusal(errno.EINVAL)
        self.put(path, str(number))

    def _choose(self, path: str, text: str, value: str) -> None:
        words = [word.strip("[]") for word in text.split()]
        if value not in words:
            raise refusal(errno.EINVAL)
        self.put(path, " ".join(f"[{word}]" if word == value else word for word in words))

    def _busy(self, path: str) -> bool:
        folder = re.match(r"(sys/devices/system/cpu/cpufreq/policy\d+)/", path)
        if folder is None or self.offline_policies != "busy":
            return False
        return folder[1] in self.recall("idle policies", [])


def snapshot(root: Path) -> dict[str, bytes]:
    """Every file below a folder with its bytes; folders and links as what they are."""
    found: dict[str, bytes] = {}
    waiting = [""]
    while waiting:  # by the quickest calls: trees have thousands of files and tests many trees
        folder = waiting.pop()
        with os.scandir(f"{root}/{folder}") as entries:
            for entry in entries:
                name = folder + entry.name
                if name == HIDDEN:
                    continue
                if entry.is_symlink():
                    found[name] = b"-> " + os.fsencode(os.readlink(entry.path))  # noqa: PTH115
                elif entry.is_dir():
                    found[f"{name}/"] = b""
                    waiting.append(f"{name}/")
                else:
                    descriptor = os.open(entry.path, os.O_RDONLY)
                    found[name] = os.read(descriptor, 1 << 20)
                    os.close(descriptor)
    return found


def _held(device: Path) -> bool:
    """Whether any process has the file open."""
    resolved = device.resolve()
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        # Processes and descriptors come and go while we look.
        with suppress(OSError):
            for link in (process / "fd").iterdir():
                with suppress(OSError):
                    if link.readlink() == resolved:
                        return True
    return False
