"""Trials whether a kernel writes every element of a buffer and depends on none of its earlier values.

The parameters of a kernel do not tell. So, where an unread write is about to be overwritten, all arguments are copied, the
kernel runs for the program, and then again on the copies, in which that buffer has other bits: the result must be the
same. The program's tensors are only read. Every such call is tried, because indices may cover a buffer by chance; one
difference decides for good.
"""

from typing import Any, Callable, Dict, List, Optional, Set, Tuple

import torch

from torchyard.worker.values.dispatch_mode import KernelWrite
from torchyard.worker.values.observation import Before, storage_key, untyped_storage
from torchyard.worker.values.scanning.scanners import words_of

_POISONS = (0x5A, 0xC3)

_Site = Tuple[str, str, int]


class OverwriteTrials:
    """All trials of a profile."""

    def __init__(self, memory_bytes: int) -> None:
        self._memory_bytes = memory_bytes
        self._failed: Set[Tuple[_Site, int]] = set()

    def begin(
        self, site: _Site, writes: List[KernelWrite], befores: List[Optional[Before]], args: Any
    ) -> Optional["Trial"]:
        """Return a trial if a write may overwrite something that nothing read."""
        concerned = [
            (position, write)
            for position, (write, before) in enumerate(zip(writes, befores))
            if not write.fresh and _concerned(before) and (site, position) not in self._failed
        ]
        if not concerned:
            return None
        storages = {
            storage_key(one): untyped_storage(one) for one in args if isinstance(one, torch.Tensor)
        }
        # The copies, and a copy of these for each run.
        if 2 * sum(one.nbytes() for one in storages.values()) > self._memory_bytes:
            return None
        copies = {key: one.clone() for key, one in storages.items()}
        return Trial(self, site, concerned, copies)

    def settle(self, site: _Site, position: int, write: KernelWrite, same: bool) -> None:
        """Store the result of a trial."""
        write.operator.overwrites = same
        if not same:
            self._failed.add((site, position))


def _concerned(before: Optional[Before]) -> bool:
    return bool(
        before is not None
        and before.whole
        and not before.reads
        and (before.fill is not None or before.kernel_write is not None)
    )


class Trial:
    """One kernel call that is repeated on copies."""

    def __init__(
        self,
        trials: OverwriteTrials,
        site: _Site,
        writes: List[Tuple[int, KernelWrite]],
        copies: Dict[int, Any],
    ) -> None:
        self._trials = trials
        self._site = site
        self._writes = writes
        self._copies = copies

    def run(self, function: Callable[..., Any], args: Any, kwargs: Any) -> None:
        """Run the kernel on copies; compare each result with that of the program."""
        for position, write in self._writes:
            same = all(self._same(write, poison, function, args, kwargs) for poison in _POISONS)
            self._trials.settle(self._site, position, write, same)

    def _same(
        self, write: KernelWrite, poison: int, function: Callable[..., Any], args: Any, kwargs: Any
    ) -> bool:
        storages = {key: one.clone() for key, one in self._copies.items()}
        target = storages[storage_key(write.tensor)]
        torch.empty(0, dtype=torch.uint8, device=target.device).set_(target).fill_(poison)
        copies = [_copied(one, storages) for one in args]
        function(*copies, **kwargs)
        return torch.equal(words_of(_copied(write.tensor, storages)), words_of(write.tensor))


def _copied(value: Any, storages: Dict[int, Any]) -> Any:
    """Return an argument with its storage replaced by the copy."""
    if not isinstance(value, torch.Tensor):
        return value
    storage = storages[storage_key(value)]
    empty = torch.empty(0, dtype=value.dtype, device=value.device)
    return empty.set_(storage, value.storage_offset(), value.size(), value.stride())
