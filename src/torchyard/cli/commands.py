"""Table of commands, and the text of `torchyard --help`.

Plain data without imports: the text is printed before click is loaded, because importing click
takes three times as long as starting Python. The click group in `group.py` shows the same text.
"""

COMMANDS: "dict[str, tuple[str, str]]" = {
    "build": (
        "torchyard.builds.commands:build",
        "build PyTorch and its companion packages from recipes",
    ),
    "doctor": (
        "torchyard.builds.commands.run:doctor",
        "check whether a build can succeed, before it starts",
    ),
    "bench": (
        "torchyard.bench.commands.bench:bench",
        "compare variants on workloads, with confidence intervals",
    ),
    "sweep": (
        "torchyard.sweep.commands.sweep:sweep",
        "benchmark whole suites, resumable, here or on a cluster",
    ),
    "batch-size": (
        "torchyard.bench.commands.batch_size:batch_size",
        "find the largest batch size that fits, and its throughput",
    ),
    "machine": (
        "torchyard.machine.command:machine",
        "inspect, quiet, restore and audit this machine",
    ),
    "tune": (
        "torchyard.tune.command:tune",
        "find and confirm the fastest settings for a workload",
    ),
    "perf-test": (
        "torchyard.tune.perf_test.command:perf_test",
        "measure a matmul and an inference under two settings",
    ),
    "values": (
        "torchyard.values.command:values",
        "find wasted work in a program by value profiling",
    ),
    "profile": (
        "torchyard.profile.command:profile",
        "run a program under torch.profiler, perf, callgrind, ...",
    ),
    "why": (
        "torchyard.why.command:why",
        "attribute a difference to operators, kernels and source lines",
    ),
    "bisect": (
        "torchyard.bisect.command:bisect",
        "find the revision, release or setting that changed a program",
    ),
    "reduce": (
        "torchyard.reduce.command:reduce",
        "reduce a slow compiled model to a small script",
    ),
    "report": (
        "torchyard.bench.commands.report:report",
        "show a saved run: terminal, JSON, CSV, HTML, ...",
    ),
    "compare": (
        "torchyard.results.compare.command:compare",
        "compare any two runs, variants or baselines",
    ),
    "baseline": (
        "torchyard.results.commands.baseline:baseline",
        "save runs under a name, to compare later runs with",
    ),
    "gate": (
        "torchyard.results.gate.command:gate",
        "fail if a workload is significantly slower than allowed",
    ),
    "history": (
        "torchyard.results.history.command:history",
        "show which workloads changed over time, and when",
    ),
    "serve": ("torchyard.dashboard.command:serve", "show runs and live progress in a browser"),
    "site": ("torchyard.dashboard.command:site", "write the same pages as static files"),
    "results": (
        "torchyard.results.commands.runs:results",
        "list, show, export, import and check saved runs",
    ),
    "workloads": ("torchyard.bench.commands.workloads:workloads", "list the built-in workloads"),
    "target": (
        "torchyard.bench.commands.target:target",
        "inspect an interpreter: its torch and devices",
    ),
    "explain": (
        "torchyard.cli.explain:explain",
        "explain a term, verdict, note or exit code",
    ),
    "completion": ("torchyard.cli.completion:completion", "print a shell completion script"),
}
"""Name -> (location of the click command, one-line summary)."""

HIDDEN_COMMANDS: "dict[str, tuple[str, str]]" = {
    "bisect-round": ("torchyard.bisect.command:bisect_round", "measure one round of a search"),
    "sweep-cell": ("torchyard.sweep.commands.sweep:sweep_cell", "measure one cell of a sweep"),
}
"""Commands that only other commands run; the help does not list them."""

ROOT_OPTIONS: "tuple[tuple[str, str], ...]" = (
    ("--debug", "show tracebacks of errors"),
    ("--version", "show the version"),
    ("-h, --help", "show this page; every command has its own"),
)

_EXAMPLES = """\
Usage: torchyard COMMAND [OPTIONS]

Examples:
  torchyard bench models/gpt                        compare eager and inductor
  torchyard bench my_model.py                       the same for your own model
  torchyard bench --suite kernels --target old=~/a/venv --target new=~/b/venv
  torchyard report latest --format html --output report.html

Compare two ways to run PyTorch, with statistics that account for noise.
"""


def root_help() -> str:
    """Return the text of `torchyard --help`."""
    commands = "\n".join(f"  {name:<12} {about}" for name, (_, about) in COMMANDS.items())
    options = "\n".join(f"  {name:<12} {about}" for name, about in ROOT_OPTIONS)
    return f"{_EXAMPLES}\nCommands:\n{commands}\n\nOptions:\n{options}\n"
