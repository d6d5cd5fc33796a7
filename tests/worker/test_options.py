"""Options as text: valid values, errors, and round trips."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchyard.worker.bench import backend_names, options
from torchyard.worker.bench.options import BadOption

SETTING_VALUES = st.one_of(
    st.booleans(), st.integers(-99, 99), st.sampled_from(["ATEN,TRITON", "x-y", "1.5.2"])
)


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("channels-last", ("channels-last", True)),
        ("channels-last=off", ("channels-last", False)),
        ("tf32=true", ("tf32", True)),
        ("matmul-precision=high", ("matmul-precision", "high")),
        ("attention=math", ("attention", "math")),
        ("inductor.freezing=true", ("inductor.freezing", True)),
        ("inductor.cpp.threads=2", ("inductor.cpp.threads", 2)),
        (
            "inductor.max_autotune_gemm_backends=ATEN",
            ("inductor.max_autotune_gemm_backends", "ATEN"),
        ),
        ("dynamo.recompile_limit=16", ("dynamo.recompile_limit", 16)),
        ("inductor.x=0.5", ("inductor.x", 0.5)),
    ],
)
def test_a_word_is_a_name_and_a_value(word: str, found: tuple[str, object]) -> None:
    assert options.looks_like_one(word)
    name, value = options.parse(word)
    assert (name, value) == found
    assert type(value) is type(found[1])


@pytest.mark.parametrize(
    ("word", "message", "hint"),
    [
        ("chanels-last=true", "no option 'chanels-last'", "did you mean 'channels-last'?"),
        ("thread=2", "no option 'thread'", "did you mean 'threads'?"),
        ("xyzzy=1", "no option 'xyzzy'", "options: channels-last, "),
        (
            "matmul-precision=low",
            "'low' is not a valid value of matmul-precision",
            "highest or high or",
        ),
        ("matmul-precision", "matmul-precision has no value", "matmul-precision=highest"),
        ("tf32=maybe", "tf32 is on or off, not 'maybe'", "write tf32 alone"),
        ("inductor.freezing", "has no value", "inductor.freezing=VALUE"),
        ("inductor.freezing=", "has no value", "inductor.freezing=VALUE"),
    ],
)
def test_invalid_options_have_hints(word: str, message: str, hint: str) -> None:
    with pytest.raises(BadOption) as caught:
        options.parse(word)
    assert message in str(caught.value)
    assert hint in caught.value.hint


def test_every_option_is_written_as_it_is_read() -> None:
    for word in options.names():
        assert options.as_text(dict([options.parse(word)])) == word


@given(st.dictionaries(st.sampled_from(["inductor.a", "inductor.b.c", "dynamo.d"]), SETTING_VALUES))
def test_settings_are_written_as_they_are_read(chosen: dict[str, options.Scalar]) -> None:
    text = options.as_text(chosen)
    assert dict(options.parse(word) for word in text.split("+") if word) == chosen


@pytest.mark.parametrize(
    ("name", "backend", "training", "fits"),
    [
        ("dynamic", "inductor", False, True),
        ("dynamic", "dynamo:my_own", True, True),
        ("dynamic", "eager", False, False),
        ("dynamic", "aot-inductor", False, False),
        ("other-batch", "export", False, False),
        ("inductor.freezing", "inductor:max-autotune", False, True),
        ("inductor.freezing", "aot-inductor", False, True),
        ("inductor.freezing", "mine.py:make", False, True),
        ("inductor.freezing", "aot_eager", False, False),
        ("dynamo.recompile_limit", "aot_eager", True, True),
        ("dynamo.recompile_limit", "torchscript", False, False),
        ("inference-mode", "eager", False, True),
        ("inference-mode", "eager", True, False),
        ("channels-last", "torchscript:freeze", False, True),
        ("nonsense", "eager", False, False),
    ],
)
def test_options_that_do_not_apply_to_a_backend(
    name: str, backend: str, training: bool, fits: bool
) -> None:
    assert (options.why_not(name, backend, training) == "") == fits


def test_what_computes_in_less_precision_is_marked() -> None:
    chosen: dict[str, options.Scalar] = {"tf32": True, "matmul-precision": "high"}
    assert options.that_change_results(chosen) == ["matmul-precision", "tf32"]
    harmless: dict[str, options.Scalar] = {
        "tf32": False,
        "matmul-precision": "highest",
        "channels-last": True,
        "cudnn-benchmark": True,
        "inductor.freezing": True,
    }
    assert options.that_change_results(harmless) == []
    fast: dict[str, options.Scalar] = {"inductor.cuda.use_fast_math": True}
    assert options.that_change_results(fast) == ["inductor.cuda.use_fast_math"]


def test_options_and_backends_share_no_word_and_each_says_what_it_does() -> None:
    assert not {option.name for option in options.OPTIONS} & set(backend_names.BACKENDS)
    assert all(option.what and option.applied for option in options.OPTIONS)
    assert all(backend_names.BACKENDS.values())
    assert {option.applied for option in options.OPTIONS} == {"model", "call", "compile"}
