"""What was wished for the next start of the machine, remembered beside the journal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from torchyard.core.records import decode, encode
from torchyard.errors import ResultsDamaged, TorchyardError, UsageError
from torchyard.machine.boot_line import BootWish
from torchyard.machine.journal_lock import cannot_keep
from torchyard.results.durable import replace_file, to_json_text

__all__ = ["recall_boot_wish", "remember_boot_wish"]

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
