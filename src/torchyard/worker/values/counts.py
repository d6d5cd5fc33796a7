"""What was looked at and what was left out, for the report: nothing is skipped silently."""

from typing import Dict


class Counts:
    """Totals of one profile."""

    __slots__ = (
        "not_compared_bytes",
        "not_deep",
        "not_seen_bytes",
        "not_strided",
        "operators",
        "small_bytes",
        "steps_left_out",
        "steps_surveyed",
        "written_bytes",
    )

    def __init__(self) -> None:
        self.operators = 0
        self.written_bytes = 0
        self.small_bytes = 0
        """In tensors below the least size."""
        self.not_seen_bytes = 0
        """In dtypes or layouts that are not looked into."""
        self.not_compared_bytes = 0
        """Overwritten while the memory for copies was full."""
        self.not_strided = 0
        """Sparse, nested and other tensors without plain memory."""
        self.not_deep = 0
        """Operators that could not be followed inside."""
        self.steps_left_out = 0
        self.steps_surveyed = 0
        """Scanned without asking the patterns."""

    def as_dict(self) -> Dict[str, int]:
        """For JSON."""
        return {name: getattr(self, name) for name in self.__slots__}
