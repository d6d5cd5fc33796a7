"""The compile meter: a compiler launcher that schedules compiles by memory and measures them."""

from torchyard.builds.meter.compile_costs import (
    Compile,
    MeterLog,
    read_meter_log,
    remove_unfinished,
)
from torchyard.builds.meter.compiler_launcher import (
    meter_actions,
    meter_variables,
    step_variables,
    write_table,
)

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
