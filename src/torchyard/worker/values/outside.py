"""Memory that the program reaches past torch's dispatcher: numpy, addresses, storages, files, extensions.

What is read or written there is not seen, so nothing is concluded from what the watch saw last: such
memory is looked at anew each time, and a fill of it is never called dead. That holds for calls from
torch's own Python code as well: `torch.save`, a logger or a data loader read memory in the same way.
Libraries that use torch's C++ interface can reach any memory but that of local variables.
"""

import functools
import mmap
import os
import sys
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch

from torchyard.worker.values.follow_library import is_follower
from torchyard.worker.values.storages import Storages

KEPT_OUTSIDE = (
    "numpy",
    "__array__",
    "data_ptr",
    "const_data_ptr",
    "__dlpack__",
    "share_memory_",
    "storage",
    "untyped_storage",
    "_typed_storage",
    "__reduce_ex__",
)
"""Methods of a tensor after which its memory is in others' hands."""
KEPT_BY_PROPERTY = ("__cuda_array_interface__",)
"""Properties that do the same."""
READ_OUTSIDE = ("tolist",)
"""Methods that read it once."""
FROM_OUTSIDE = ("from_numpy", "frombuffer", "as_tensor", "asarray", "from_dlpack", "from_file")
"""Functions whose result may be memory of others."""
THROUGH_THE_DISPATCHER = frozenset({"torchvision", "torchaudio"})
"""Packages whose compiled parts are operators like torch's own."""
_LINKED = (b"libc10.so", b"libtorch_cpu.so", b"libtorch_python.so")
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


class OutsideAccess:
    """Notes access from outside until it is removed."""

    def __init__(self, storages: Storages) -> None:
        self._storages = storages
        self.handed_out: Dict[str, int] = {}
        """How often tensors were handed out, by the name of the method."""
        self._replaced: List[Tuple[Any, str, Any]] = []
        for name in KEPT_OUTSIDE:
            self._replace(torch.Tensor, name, self._kept)
        for name in READ_OUTSIDE:
            self._replace(torch.Tensor, name, self._read)
        for name in KEPT_BY_PROPERTY:
            self._replace_property(torch.Tensor, name)
        for owner in (torch, torch.utils.dlpack):
            self._replace(owner, "to_dlpack", self._kept)
        for name in FROM_OUTSIDE:
            self._replace(torch, name, None)

    def remove(self) -> None:
        """Leave torch as it was."""
        for owner, name, own in reversed(self._replaced):
            if own is None:
                delattr(owner, name)
            else:
                setattr(owner, name, own)
        self._replaced.clear()

    def notes(self) -> List[str]:
        """What the user should know of it."""
        if not self.handed_out:
            return []
        said = ", ".join(
            "%s %s" % (name, "once" if count == 1 else "%d times" % count)
            for name, count in sorted(self.handed_out.items())
        )
        return ["tensors were handed to code that is not seen: " + said]

    def _replace(self, owner: Any, name: str, note: Optional[Callable[[Any], None]]) -> None:
        function = getattr(owner, name, None)
        if function is None:
            return

        @functools.wraps(function)
        def noted(*args: Any, **kwargs: Any) -> Any:
            if note is not None:
                if args and not _called_by_us():
                    note(args[0])
                    self._count(name)
                return function(*args, **kwargs)
            result = function(*args, **kwargs)
            self._kept(result)
            return result

        self._replaced.append((owner, name, vars(owner).get(name)))
        setattr(owner, name, noted)

    def _replace_property(self, owner: Any, name: str) -> None:
        own = vars(owner).get(name)
        if not isinstance(own, property) or own.fget is None:
            return
        get = own.fget

        def noted(tensor: Any) -> Any:
            self._kept(tensor)
            self._count(name)
            return get(tensor)

        self._replaced.append((owner, name, own))
        setattr(owner, name, property(noted))

    def _count(self, name: str) -> None:
        """For the report, which tells only of what the program itself handed out."""
        if name not in READ_OUTSIDE and not sys._getframe(2).f_code.co_filename.startswith(_TORCH):
            self.handed_out[name] = self.handed_out.get(name, 0) + 1

    def _kept(self, tensor: Any) -> None:
        if _plain(tensor):
            self._storages.of(tensor, 0).escape()

    def _read(self, tensor: Any) -> None:
        if _plain(tensor):
            state = self._storages.of(tensor, 0)
            state.reads += 1
            state.uses += 1


def libraries_outside() -> List[str]:
    """Loaded libraries that use torch's C++ interface and are not known to be operators only."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
            paths = {line.split(None, 5)[5].strip() for line in file if ".so" in line}
    except (OSError, IndexError):
        return []
    found = []
    for path in sorted(paths):
        folder = os.path.basename(os.path.dirname(path))
        if path.startswith(_TORCH) or folder in THROUGH_THE_DISPATCHER or is_follower(path):
            continue
        if _is_linked_with_torch(path):
            found.append(os.path.basename(path))
    return found


@functools.lru_cache(maxsize=None)
def _is_linked_with_torch(path: str) -> bool:
    """Read once for each library: those of a GPU are gigabytes, 3.5 s in all on a machine with CUDA."""
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
            return any(text.find(name) >= 0 for name in _LINKED)
    except (OSError, ValueError):
        return False


def _called_by_us() -> bool:
    """Scanners and trials read memory without changing what the program sees."""
    return sys._getframe(2).f_code.co_filename.startswith(_OURS)


def _plain(tensor: Any) -> bool:
    return (
        isinstance(tensor, torch.Tensor)
        and tensor.layout is torch.strided
        and tensor.device.type not in ("meta", "mkldnn")
    )
