"""The compile meter: a launcher that admits compiles by memory, measures them, and logs them."""

from torchyard.build.meter.launcher import (
    meter_actions,
    meter_variables,
    step_variables,
    write_table,
)
from torchyard.build.meter.log import Compile, MeterLog, read_meter_log, remove_unfinished

__all__ = [
    "Compile",
    "MeterLog",
    "meter_actions",
    "meter_variables",
    "read_meter_log",
    "remove_unfinished",
    "step_variables",
    "write_table",
]
