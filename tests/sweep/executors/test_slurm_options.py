"""Slurm options from the options of a sweep."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchyard.core.study import Scalar
from torchyard.errors import UsageError
from torchyard.sweep.executors.slurm.job_options import OPTION_NAMES, SlurmOptions, read_options
from torchyard.sweep.executors.slurm.submission import (
    SlurmUnreachable,
    _parameters,
    _submission_error,
)


def test_nothing_asked_for() -> None:
    assert read_options(()) == SlurmOptions()


def test_everything_asked_for() -> None:
    options = read_options(
        (
            ("partition", "gpu,gpu-long"),
            ("account", "team_1"),
            ("qos", "high"),
            ("gpus", 2),
            ("exclusive", True),
            ("time", "2h"),
            ("cpus", "8"),
            ("memory", "16 GiB"),
            ("at-most", 4),
            ("slurm-constraint", "[rack1|rack2]&fast"),
            ("slurm-contiguous", True),
            ("slurm-nice", 10),
        )
    )
    assert options == SlurmOptions(
        partition="gpu,gpu-long",
        account="team_1",
        qos="high",
        gpus="2",
        exclusive=True,
        time_min=120,
        cpus=8,
        memory="16G",
        at_most=4,
        extra=(("constraint", "[rack1|rack2]&fast"), ("contiguous", True), ("nice", 10)),
    )


@pytest.mark.parametrize(
    ("text", "minutes"),
    [
        (90, 90),
        ("90", 90),
        ("1:30", 2),
        ("2:30:00", 150),
        ("2:30:01", 151),
        ("1-0", 1440),
        ("1-12", 2160),
        ("1-12:30", 2190),
        ("0-0:0:30", 1),
        ("90min", 90),
        ("45s", 1),
        ("1.5h", 90),
    ],
)
def test_times_as_slurm_and_as_torchyard_write_them(text: Scalar, minutes: int) -> None:
    assert read_options((("time", text),)).time_min == minutes


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("partition", "gpu; rm -rf /"),
        ("partition", "gpu\n#SBATCH --uid=0"),
        ("partition", ""),
        ("partition", "-x"),
        ("account", True),
        ("qos", "a b"),
        ("gpus", "two"),
        ("gpus", "h100:"),
        ("gpus", -1),
        ("exclusive", "yes"),
        ("time", 0),
        ("time", 1.5),
        ("time", "soon"),
        ("time", "1:2:3:4"),
        ("time", True),
        ("cpus", 0),
        ("cpus", "²"),
        ("memory", 16),
        ("memory", "16X"),
        ("memory", "-1G"),
        ("at-most", 0),
        ("at-most", True),
        ("slurm-comment", "$(id)"),
        ("slurm-comment", "a'b"),
        ("slurm-comment", 'a"b'),
        ("slurm-comment", "a\\b"),
        ("slurm-comment", "a\nb"),
        ("slurm-comment", " "),
        ("slurm-comment", "x" * 257),
        ("slurm-contiguous", False),
    ],
)
def test_wrong_values_name_the_option(name: str, value: Scalar) -> None:
    with pytest.raises(UsageError) as caught:
        read_options(((name, value),))
    assert caught.value.what.startswith(f"Slurm: {name} = ")
    assert caught.value.hint


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("partiton", "did you mean 'partition'?"),
        ("slurm-partition", "use 'partition'"),
        ("slurm-mem", "use 'memory'"),
        ("slurm-gpus-per-node", "use 'gpus'"),
        ("slurm-", "use lower-case letters"),
        ("slurm-A", "use lower-case letters"),
        ("slurm-a b", "use lower-case letters"),
        ("slurm--x", "use lower-case letters"),
        ("slurm-a=b", "use lower-case letters"),
    ],
)
def test_wrong_names(name: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_options(((name, "x"),))
    assert caught.value.hint.startswith(hint)


@pytest.mark.parametrize("name", ["array", "output", "job-name", "wrap", "no-requeue", "nodes"])
def test_options_that_the_executor_needs_for_itself(name: str) -> None:
    with pytest.raises(UsageError, match="is not allowed"):
        read_options(((f"slurm-{name}", "1"),))


@given(
    st.sampled_from([*OPTION_NAMES, "slurm-comment", "slurm-constraint"]),
    st.text(max_size=30) | st.integers() | st.booleans() | st.floats(),
)
def test_nothing_that_a_shell_could_take_for_more_gets_into_the_script(
    name: str, value: Scalar
) -> None:
    from submitit.slurm.slurm import _make_sbatch_string

    try:
        options = read_options(((name, value),))
    except UsageError:
        return
    script = _make_sbatch_string(
        command="true", folder="/sweep", map_count=2, **_parameters("n", 2, options)
    )
    head, _, rest = script.partition("\n\n# command\n")
    assert rest == "export SUBMITIT_EXECUTOR=slurm\ntrue\n"
    for line in head.splitlines()[3:]:
        assert line.startswith("#SBATCH --")
        assert not set(line) & set('$`"\\;<>\r\0')


def test_time_enough_for_the_limit_of_a_cell() -> None:
    plain, timed = SlurmOptions(), SlurmOptions(time_min=30)
    assert plain.with_limit(None).time_min is None
    assert plain.with_limit(90.0).time_min == 3, "Slurm's limit comes after the cell's own"
    assert timed.with_limit(90.0).time_min == 30, "what was asked for stays"


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("Invalid account or account/partition combination specified", "account"),
        ("Invalid qos specification", "qos"),
        (
            "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)",
            "qos",
        ),
        ("User's group not permitted to use this partition", "partition"),
        ("Requested time limit is invalid (missing or exceeds some limit)", "time"),
        ("CPU count per node can not be satisfied", "cpus"),
        ("More processors requested than permitted", "cpus"),
        ("Requested node configuration is not available", "gpus, cpus, memory or exclusive"),
    ],
)
def test_refusals_that_need_a_larger_cluster_than_that_of_the_tests(words: str, named: str) -> None:
    said = f"sbatch: error: Batch job submission failed: {words}"
    error = _submission_error(said, SlurmOptions())
    assert isinstance(error, UsageError)
    assert error.what == f"Slurm rejected the jobs because of {named}"
    assert error.why == f"sbatch: Batch job submission failed: {words}"


def test_an_unknown_refusal() -> None:
    assert (
        _submission_error("sbatch: error: Full moon", SlurmOptions()).what
        == "Slurm rejected the jobs"
    )
    assert _submission_error("", SlurmOptions()).what == "Slurm rejected the jobs"


@pytest.mark.parametrize(
    "words",
    [
        "Batch job submission failed: Socket timed out on send/recv operation",
        "Batch job submission failed: Unable to contact slurm controller (connect failure)",
        "Slurm temporarily unable to accept job, sleeping and retrying",
    ],
)
def test_no_answer_is_not_a_refusal(words: str) -> None:
    """Slurm may have taken the jobs all the same."""
    assert isinstance(
        _submission_error(f"sbatch: error: {words}", SlurmOptions()), SlurmUnreachable
    )
