"""Table of commands, and the text of `torchyard --help`.

Plain data without imports: the text is printed before click is loaded, because importing click
takes three times as long as starting Python. The click group in `group.py` shows the same text.
"""

COMMANDS: "dict[str, tuple[str, str]]" = {
    "build": ("torchyard.builds.commands:build", "build PyTorch and its companions from recipes"),
    "doctor": ("torchyard.builds.commands.doctor:doctor", "say before a build whether it can work"),
    "bench": (
        "torchyard.bench.commands.bench:bench",
        "compare variants on workloads: which is faster, and how sure",
    ),
    "sweep": (
        "torchyard.sweep.commands.sweep:sweep",
        "bench whole suites, resumable, here or on a cluster",
    ),
    "batch-size": (
        "torchyard.bench.commands.batch_size:batch_size",
        "find the largest batch that fits, and what it pays",
    ),
    "machine": ("torchyard.machine.command_group:machine", "see, quiet and restore this machine"),
    "tune": (
        "torchyard.tune.command:tune",
        "find the fastest settings for a workload, and prove it",
    ),
    "perf-test": (
        "torchyard.tune.perf_test.command:perf_test",
        "a matrix product and an inference, under two settings",
    ),
    "values": ("torchyard.values.command:values", "find wasted work in a program by its values"),
    "profile": (
        "torchyard.profile.command:profile",
        "run a program under torch.profiler, perf, callgrind, ...",
    ),
    "report": (
        "torchyard.bench.commands.report:report",
        "show a run again: terminal, JSON, CSV, HTML, ...",
    ),
    "compare": (
        "torchyard.results.compare.command:compare",
        "compare any two runs, variants or baselines",
    ),
    "baseline": (
        "torchyard.results.commands.groups:baseline",
        "name runs that later ones are compared with",
    ),
    "gate": (
        "torchyard.results.gate.command:gate",
        "fail when something got slower than allowed, for sure",
    ),
    "history": (
        "torchyard.results.history.command:history",
        "which workloads changed over time, and where",
    ),
    "serve": ("torchyard.dashboard.command:serve", "show runs and live progress in a browser"),
    "site": ("torchyard.dashboard.command:site", "write the same pages as files for any web host"),
    "results": (
        "torchyard.results.commands.groups:results",
        "list, show, export, import and check kept runs",
    ),
    "workloads": ("torchyard.bench.commands.workloads:workloads", "list what can be measured"),
    "target": (
        "torchyard.bench.commands.target:target",
        "look at an interpreter: its torch and devices",
    ),
    "explain": (
        "torchyard.cli.explain:explain",
        "say what a word, verdict, note or exit code means",
    ),
    "completion": ("torchyard.cli.completion:completion", "print a completion script for a shell"),
}
"""Name -> (where the click command is, one line about it)."""

HIDDEN_COMMANDS: "dict[str, tuple[str, str]]" = {
    "sweep-cell": ("torchyard.sweep.commands.sweep:sweep_cell", "measure one cell of a sweep"),
}
"""The same for commands that other commands run; no page lists them."""

ROOT_OPTIONS: "tuple[tuple[str, str], ...]" = (
    ("--debug", "show tracebacks of errors"),
    ("--version", "show the version"),
    ("-h, --help", "show this page; every command has one, too"),
)

_EXAMPLES = """\
Usage: torchyard COMMAND [OPTIONS]

Examples:
  torchyard bench --only models/gpt                 eager against inductor
  torchyard bench --suite kernels --target old=~/a/venv --target new=~/b/venv
  torchyard report latest --format html --output report.html

Compare two ways to run PyTorch with statistics that hold on noisy machines.
"""


def root_help() -> str:
    """The page of `torchyard --help`."""
    commands = "\n".join(f"  {name:<12} {about}" for name, (_, about) in COMMANDS.items())
    options = "\n".join(f"  {name:<12} {about}" for name, about in ROOT_OPTIONS)
    return f"{_EXAMPLES}\nCommands:\n{commands}\n\nOptions:\n{options}\n"
