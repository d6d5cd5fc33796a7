"""NVML without a card: replays the answers of a real card, and reacts to settings as a driver does.

`RecordedNvml(load("h200"))` stands where the `pynvml` module stands. A question that was not
recorded fails the test: record again with tests/gpu/record_nvml.py. Orders change what is answered
afterwards, need `permitted`, and are kept in `orders`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

DATA = Path(__file__).parents[1] / "data" / "nvml"
INVALID_ARGUMENT = 2
NOT_SUPPORTED = 3
NO_PERMISSION = 4
FUNCTION_NOT_FOUND = 13
ANSWERS = {
    INVALID_ARGUMENT: "Invalid Argument",
    NOT_SUPPORTED: "Not Supported",
    NO_PERMISSION: "Insufficient Permissions",
    6: "Not Found",
    FUNCTION_NOT_FOUND: "Function Not Found",
    15: "GPU is lost",
}
HELD_BY_USER = 0x2


class NvmlRefuses(Exception):
    """As pynvml's NVMLError: a number, and words for it."""

    def __init__(self, value: int) -> None:
        super().__init__(ANSWERS.get(value, f"NVML Error with code {value}"))
        self.value = value


def load(name: str) -> dict[str, Any]:
    recording: dict[str, Any] = json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))
    return recording


class RecordedNvml:
    """One or more cards like the recorded one."""

    NVMLError = NvmlRefuses

    def __init__(self, recording: dict[str, Any], *, state: str = "idle", cards: int = 1) -> None:
        self.permitted = True
        self.orders: list[tuple[Any, ...]] = []
        self.running = 1
        """How many users NVML counts; a shutdown takes one."""
        self._missing: set[str] = set()
        self._answers: dict[tuple[Any, ...], Any] = {}
        self._free: dict[tuple[Any, ...], Any] = {}
        for name, arguments, answer in recording["states"][state]:
            for card in range(cards):
                placed = [f"gpu{card}" if item == "gpu0" else item for item in arguments]
                if "missing" in answer:
                    self._missing.add(name)
                elif "error" in answer:
                    self.refuse(name, *placed, code=answer["error"])
                else:
                    self.answer(name, *placed, value=_object(answer["value"]))
        self.answer("nvmlDeviceGetCount", value=cards)
        for card in range(cards):
            self.answer("nvmlDeviceGetHandleByIndex", card, value=f"gpu{card}")
            uuid = f"GPU-00000000-0000-0000-0000-{card + 1:012d}"
            self.answer("nvmlDeviceGetUUID", f"gpu{card}", value=uuid)

    def answer(self, name: str, *arguments: Any, value: Any) -> None:
        """From now on."""
        self._answers[name, *arguments] = value

    def refuse(self, name: str, *arguments: Any, code: int = NOT_SUPPORTED) -> None:
        """From now on; without arguments whatever is asked."""
        known = [key for key in self._answers if key[0] == name]
        for key in [(name, *arguments)] if arguments or not known else known:
            self._answers[key] = NvmlRefuses(code)

    def forget(self, name: str) -> None:
        """As if this release of nvidia-ml-py had no such function."""
        self._missing.add(name)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if not name.startswith("nvml") or name in self._missing:
            raise AttributeError(name)

        def call(*arguments: Any) -> Any:
            if name == "nvmlDeviceGetProcessUtilization":
                arguments = (arguments[0], 0)
            if name == "nvmlDeviceGetHandleByIndex" and (name, *arguments) not in self._answers:
                raise NvmlRefuses(INVALID_ARGUMENT)
            value = self._answers[name, *arguments]
            if isinstance(value, NvmlRefuses):
                raise value
            return value

        return call

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's name
        self.running += 1

    def nvmlShutdown(self) -> None:  # noqa: N802 - NVML's name
        if not self.running:
            raise NvmlRefuses(1)
        self.running -= 1

    def nvmlDeviceSetPersistenceMode(self, card: str, mode: int) -> None:  # noqa: N802
        self._order("nvmlDeviceSetPersistenceMode", card, mode)
        self.answer("nvmlDeviceGetPersistenceMode", card, value=mode)

    def nvmlDeviceSetComputeMode(self, card: str, mode: int) -> None:  # noqa: N802
        self._order("nvmlDeviceSetComputeMode", card, mode)
        self.answer("nvmlDeviceGetComputeMode", card, value=mode)

    def nvmlDeviceSetPowerManagementLimit(self, card: str, limit: int) -> None:  # noqa: N802
        lowest, highest = self._answers["nvmlDeviceGetPowerManagementLimitConstraints", card]
        self._order("nvmlDeviceSetPowerManagementLimit", card, limit)
        if not lowest <= limit <= highest:
            raise NvmlRefuses(INVALID_ARGUMENT)
        self.answer("nvmlDeviceGetPowerManagementLimit", card, value=limit)

    def nvmlDeviceSetGpuLockedClocks(self, card: str, lowest: int, highest: int) -> None:  # noqa: N802
        self._order("nvmlDeviceSetGpuLockedClocks", card, lowest, highest)
        self._hold(card, (0, 1), highest)

    def nvmlDeviceResetGpuLockedClocks(self, card: str) -> None:  # noqa: N802
        self._order("nvmlDeviceResetGpuLockedClocks", card)
        self._let_go(card, (0, 1))

    def nvmlDeviceSetMemoryLockedClocks(self, card: str, lowest: int, highest: int) -> None:  # noqa: N802
        self._order("nvmlDeviceSetMemoryLockedClocks", card, lowest, highest)
        self._hold(card, (2,), highest)

    def nvmlDeviceResetMemoryLockedClocks(self, card: str) -> None:  # noqa: N802
        self._order("nvmlDeviceResetMemoryLockedClocks", card)
        self._let_go(card, (2,))

    def nvmlDeviceSetApplicationsClocks(self, card: str, memory: int, graphics: int) -> None:  # noqa: N802
        self._order("nvmlDeviceSetApplicationsClocks", card, memory, graphics)
        for kind, clock in ((0, graphics), (1, graphics), (2, memory)):
            self.answer("nvmlDeviceGetApplicationsClock", card, kind, value=clock)

    def nvmlDeviceResetApplicationsClocks(self, card: str) -> None:  # noqa: N802
        self._order("nvmlDeviceResetApplicationsClocks", card)
        for kind in (0, 1, 2):
            default = self._answers["nvmlDeviceGetDefaultApplicationsClock", card, kind]
            self.answer("nvmlDeviceGetApplicationsClock", card, kind, value=default)

    def _order(self, *order: Any) -> None:
        if not self.permitted:
            raise NvmlRefuses(NO_PERMISSION)
        if order[0] in self._missing:
            raise NvmlRefuses(NOT_SUPPORTED)
        self.orders.append(order)

    def _hold(self, card: str, kinds: tuple[int, ...], clock: int) -> None:
        self._keep("nvmlDeviceGetCurrentClocksEventReasons", card, HELD_BY_USER)
        for kind in kinds:
            self._keep("nvmlDeviceGetClockInfo", card, clock, kind)

    def _keep(self, name: str, card: str, value: Any, *more: int) -> None:
        key = (name, card, *more)
        self._free.setdefault(key, self._answers[key])
        self._answers[key] = value

    def _let_go(self, card: str, kinds: tuple[int, ...]) -> None:
        keys: list[tuple[Any, ...]] = [("nvmlDeviceGetCurrentClocksEventReasons", card)]
        keys += [("nvmlDeviceGetClockInfo", card, kind) for kind in kinds]
        for key in keys:
            if key in self._free:
                self._answers[key] = self._free.pop(key)


def _object(value: Any) -> Any:
    """Structures as objects with fields, as pynvml gives them."""
    if isinstance(value, list):
        return [_object(item) for item in value]
    if isinstance(value, dict):
        return SimpleNamespace(**{name: _object(item) for name, item in value["fields"].items()})
    return value
