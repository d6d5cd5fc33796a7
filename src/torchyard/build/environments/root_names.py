"""Names of hosts inside a root folder: the machine may have moved to another network since."""

from __future__ import annotations

from torchyard.core.build_plan import Command

__all__ = ["names_command"]


def names_command(root: str) -> Command:
    """Bring the machine's resolver settings into the root, before a step that uses the network.

    A link there would lead out of the root, so it is replaced and not followed.
    """
    return Command(
        argv=("cp", "-L", "--remove-destination", "/etc/resolv.conf", f"{root}/etc/resolv.conf"),
        inside_root=False,
    )
