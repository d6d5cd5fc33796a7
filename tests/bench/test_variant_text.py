"""Variants from text: the meaning of each part, errors, and names."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchyard.bench.request import SpecText
from torchyard.bench.variant_text import Parts, parse_variant, with_short_names
from torchyard.core.study import PRECISIONS, Environment, Target, Variant
from torchyard.core.variant_parts import BACKENDS, check_name, check_names
from torchyard.errors import UsageError

HERE = Target(name="here", python="/usr/bin/python3")
OLD = Target(name="old", python="/old/bin/python")
NEW = Target(name="new", python="/new/bin/python")
TCMALLOC = Environment(name="tcmalloc", preload=("libtcmalloc.so.4",))
PARTS = Parts(targets={"old": OLD, "new": NEW}, environments={"tcmalloc": TCMALLOC}, here=HERE)
BARE = Parts(targets={}, environments={}, here=HERE)


def spec(text: str, folder: Path = Path()) -> SpecText:
    return SpecText(text=text, where="--candidate", folder=folder)


def parse(text: str, parts: Parts = PARTS, folder: Path = Path()) -> Variant:
    return parse_variant(spec(text, folder), parts)


@pytest.mark.parametrize("order", list(permutations(("inductor", "bfloat16", "new", "tcmalloc"))))
def test_parts_may_stand_in_any_order(order: tuple[str, ...]) -> None:
    variant = parse("+".join(order))
    assert (variant.target, variant.backend) == (NEW, "inductor")
    assert (variant.precision, variant.environment) == ("bfloat16", TCMALLOC)


def test_omitted_parts_take_the_default() -> None:
    variant = parse("bfloat16", BARE)
    assert (variant.backend, variant.target, variant.environment.name) == ("eager", HERE, "default")
    assert parse("inductor", BARE).precision == "float32"


def test_the_first_target_is_the_default_one_and_here_can_be_named() -> None:
    assert parse("inductor").target == OLD
    assert parse("inductor+here").target == HERE


def test_the_default_precision_applies_where_none_is_named() -> None:
    parts = Parts(targets={}, environments={}, here=HERE, default_precision="amp")
    assert parse("inductor", parts).precision == "amp"
    assert parse("inductor+float32", parts).precision == "float32"


@pytest.mark.parametrize("backend", [*BACKENDS, "dynamo:onnxrt", "dynamo:my-backend_2.x"])
def test_every_backend_word_is_kept_as_written(backend: str) -> None:
    assert parse(backend).backend == backend


def test_a_backend_of_the_users_is_found_from_the_folder_of_the_spec(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def speed_up(module): return module\n")
    assert parse("mine.py:speed_up+amp", folder=tmp_path).backend == f"{tmp_path}/mine.py:speed_up"


@pytest.mark.parametrize(
    ("text", "what", "hint"),
    [
        ("inducto", "'inducto' is not a backend", "did you mean 'inductor'?"),
        ("inductor:max-autotun", "is not a backend", "did you mean 'inductor:max-autotune'?"),
        ("bf16", "'bf16' is not a backend", "did you mean 'bfloat16'?"),
        ("inductor+FP16", "'FP16' is not a backend", "did you mean 'float16'?"),
        ("inductor+tcmaloc", "'tcmaloc' is no", "did you mean 'tcmalloc'?"),
        ("xyzzy", "'xyzzy' is not a backend", "valid parts:"),
        ("inductor+", "has an empty part", "join parts with one +"),
        ("", "has an empty part", "join parts"),
        ("dynamo", "'dynamo' names no backend", "write dynamo:NAME"),
        ("dynamo:", "names no backend", "write dynamo:NAME"),
        ("eager+inductor", "has two parts of one kind", "keep one backend"),
        ("float16+amp", "has two parts of one kind", "keep one precision"),
        ("old+new", "has two parts of one kind", "keep one target"),
        ("default+tcmalloc", "has two parts of one kind", "keep one environment"),
        ("missing.py:speed_up", "no such file: 'missing.py'", "FILE.py:FUNCTION"),
        ("missing.py", "does not name a function", "missing.py:FUNCTION"),
        ("missing.py:no-function", "does not name a function", "FUNCTION"),
    ],
)
def test_an_invalid_part_is_refused_with_a_hint(text: str, what: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(text)
    assert caught.value.what.startswith("--candidate: ")
    assert what in caught.value.what
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("inductor+dynamic", (("dynamic", True),)),
        ("channels-last", (("channels-last", True),)),
        ("tf32+eager+channels-last", (("channels-last", True), ("tf32", True))),
        ("eager+matmul-precision=high", (("matmul-precision", "high"),)),
        (
            "inductor+inductor.freezing=true+inductor.cpp.threads=2",
            (("inductor.cpp.threads", 2), ("inductor.freezing", True)),
        ),
        ("inductor+inductor.freezing=false", (("inductor.freezing", False),)),
        ("eager+tf32=off", ()),
    ],
)
def test_any_number_of_options_sorted_by_name(text: str, options: tuple[object, ...]) -> None:
    assert parse(text).options == options


@pytest.mark.parametrize(
    ("text", "name", "threads"),
    [
        ("threads=1", "threads=1", 1),
        ("eager+tcmalloc+threads=4", "tcmalloc+threads=4", 4),
        ("threads=4+default", "threads=4", 4),
    ],
)
def test_threads_make_an_environment_on_the_fly(text: str, name: str, threads: int) -> None:
    environment = parse(text).environment
    assert (environment.name, environment.threads) == (name, threads)
    assert environment.preload == (TCMALLOC.preload if "tcmalloc" in text else ())
    assert parse(text).process_key != parse("eager").process_key
    assert parse(name).environment == environment


@pytest.mark.parametrize(
    ("text", "what", "hint"),
    [
        ("eager+chanels-last", "'chanels-last' is not a backend", "did you mean 'channels-last'?"),
        ("eager+chanels-last=true", "no option 'chanels-last'", "did you mean 'channels-last'?"),
        (
            "matmul-precision=hi",
            "'hi' is not a valid value of matmul-precision",
            "highest or high or",
        ),
        ("matmul-precision", "matmul-precision has no value", "write matmul-precision="),
        ("tf32+tf32", "has the option tf32 twice", "keep one"),
        ("tf32+tf32=off", "has the option tf32 twice", "keep one"),
        ("inductor.freezing", "has no value", "inductor.freezing=VALUE"),
        ("eager+dynamic", "is not a valid combination", "such as inductor"),
        (
            "aot_eager+inductor.freezing=true",
            "is not a valid combination",
            "remove inductor.freezing",
        ),
        ("threads", "is not a number of threads", "threads=1"),
        ("threads=0", "is not a number of threads", "threads=1"),
        ("threads=many", "is not a number of threads", "threads=1"),
        ("threads=1+threads=2", "has the option threads twice", "keep one"),
    ],
)
def test_an_invalid_option_is_refused_with_a_hint(text: str, what: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(text)
    assert caught.value.what.startswith("--candidate: ")
    assert what in caught.value.what
    assert hint in caught.value.hint


def names(*texts: str, parts: Parts = PARTS) -> list[str]:
    return [v.name for v in with_short_names([parse(text, parts) for text in texts])]


@pytest.mark.parametrize(
    ("texts", "wanted"),
    [
        (("eager", "inductor"), ["eager", "inductor"]),
        (("eager+new", "inductor+new"), ["eager", "inductor"]),
        (("old", "new"), ["old", "new"]),
        (("old", "new+inductor"), ["old+eager", "new+inductor"]),
        (("eager", "tcmalloc"), ["default", "tcmalloc"]),
        (("float32", "bfloat16"), ["float32", "bfloat16"]),
        (("eager+amp", "inductor+amp"), ["eager+amp", "inductor+amp"]),
        (("eager", "eager"), ["eager", "eager-again"]),
        (("eager", "channels-last"), ["eager", "eager+channels-last"]),
        (("inductor", "inductor+dynamic"), ["inductor", "inductor+dynamic"]),
        (("eager+tf32", "inductor+tf32"), ["eager+tf32", "inductor+tf32"]),
        (
            ("old+inductor", "new+inductor+inductor.freezing=true"),
            ["old", "new+inductor.freezing=true"],
        ),
        (("eager", "threads=1"), ["default", "threads=1"]),
        (("eager+tcmalloc", "tcmalloc+threads=1"), ["tcmalloc", "tcmalloc+threads=1"]),
    ],
)
def test_names_say_what_differs(texts: tuple[str, ...], wanted: list[str]) -> None:
    assert names(*texts) == wanted


def test_two_files_of_one_name_stay_apart(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").touch()
    variant_names = names(f"{tmp_path}/a/mine.py:f", f"{tmp_path}/b/mine.py:f")
    assert variant_names[0] == "mine.py:f"
    assert len(set(variant_names)) == 2


def test_a_third_copy_of_a_variant_is_refused() -> None:
    with pytest.raises(UsageError, match="more than once"):
        names("eager", "inductor", "inductor", "inductor")


@given(
    st.lists(
        st.tuples(
            st.sampled_from(BACKENDS),
            st.sampled_from(PRECISIONS),
            st.sampled_from(["old", "new", "here"]),
            st.sampled_from(["default", "tcmalloc"]),
        ),
        min_size=2,
        max_size=6,
        unique=True,
    )
)
def test_names_are_unique_and_mean_the_same_variant_again(
    chosen: list[tuple[str, str, str, str]],
) -> None:
    variants = with_short_names([parse("+".join(parts)) for parts in chosen])
    assert len({variant.name for variant in variants}) == len(variants)
    for variant, (backend, precision, target, environment) in zip(variants, chosen, strict=True):
        assert variant.backend == backend
        assert variant.precision == precision
        assert variant.target.name == target
        assert variant.environment.name == environment


@pytest.mark.parametrize(
    ("targets", "environments", "message"),
    [
        (["eager"], [], "the name 'eager' is ambiguous: a target and a backend"),
        (["bfloat16"], [], "the name 'bfloat16' is ambiguous: a target and a precision"),
        ([], ["inductor"], "the name 'inductor' is ambiguous: a backend and an environment"),
        ([], ["dynamo"], "the name 'dynamo' is ambiguous: a backend and an environment"),
        (["one"], ["one"], "the name 'one' is ambiguous: a target and an environment"),
        (["tf32"], [], "the name 'tf32' is ambiguous: a target and an option"),
        ([], ["threads"], "the name 'threads' is ambiguous: an environment and an option"),
        (["here"], [], "the target name 'here' is reserved"),
        ([], ["default"], "the environment name 'default' is reserved"),
    ],
)
def test_a_name_that_means_two_things_is_refused(
    targets: list[str], environments: list[str], message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        check_names(targets, environments)
    assert caught.value.what == message


@pytest.mark.parametrize("name", ["", "a+b", "a b", "a/b", "-a", "a:b", "a=b", "ü", "mine.py"])
def test_names_that_cannot_be_parts_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="is not a valid name"):
        check_name(name, where="--target")


@pytest.mark.parametrize("name", ["torch-2.9", "nightly", "3.12", "A_b"])
def test_usual_names_are_allowed(name: str) -> None:
    check_name(name, where="--target")
