"""Profiles as files, and value profiling of user code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import torchyard
from torchyard.errors import ResultsDamaged, UsageError
from torchyard.values.context_manager import ValueProfiler
from torchyard.values.model import (
    Place,
    ValueFinding,
    ValueProfile,
    find_profile,
    new_profile_folder,
    read_profile,
    write_profile,
)


def sample() -> ValueProfile:
    found = ValueFinding(
        pattern="duplicate",
        operator="aten::clone",
        place=Place(file="a.py", line=1, module="layers.0"),
        path=("aten::contiguous",),
        shape=(2, 3),
        evidence={"sample": [1.0, float("inf")]},
    )
    return ValueProfile(format=1, state="finished", torch="2.13", steps=2, findings=(found,))


def test_a_profile_round_trips(tmp_path: Path) -> None:
    path = write_profile(tmp_path, sample())
    assert read_profile(path) == sample()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "line 1: not JSON"),
        ("[]", "is not a profile"),
        ('{"format": "1"}', "is not a profile"),
        ('{"format": 2}', "newer"),
        ('{"format": 1, "state": "finished", "torch": 5}', "torch"),
        ('{"format": 1}', "missing"),
    ],
)
def test_a_damaged_profile_is_named(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "profile.json"
    path.write_text(text)
    with pytest.raises(ResultsDamaged) as caught:
        read_profile(path)
    assert said in caught.value.what
    assert caught.value.exit_code == 8


def test_profiles_are_found_by_folder_file_and_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHYARD_HOME", str(tmp_path / "home"))
    with pytest.raises(UsageError):
        find_profile("latest")
    older, newer = new_profile_folder(), new_profile_folder()
    write_profile(older, sample())
    assert find_profile("latest") == older / "profile.json"
    path = write_profile(newer, sample())
    assert find_profile("latest") == path
    assert find_profile(str(newer)) == find_profile(str(path)) == find_profile(newer.name) == path
    with pytest.raises(UsageError, match="no profile at"):
        find_profile(str(tmp_path / "none"))


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    with pytest.raises(UsageError):
        new_profile_folder(tmp_path)
    assert new_profile_folder(tmp_path / "new").is_dir()


def test_an_unknown_option() -> None:
    with pytest.raises(UsageError, match="depth"):
        torchyard.profile_values(depth="deep")


def test_calling_the_package_is_deprecated() -> None:
    import torchyard.values  # a package: this import keeps working

    with pytest.warns(DeprecationWarning, match="profile_values"):
        profiler = torchyard.values(deep=True)  # type: ignore[operator]
    assert isinstance(profiler, ValueProfiler)
    assert profiler.options == torchyard.profile_values(deep=True).options


def test_the_profile_is_read_after_the_block() -> None:
    with pytest.raises(UsageError, match="not finished"):
        _ = ValueProfiler().profile


@pytest.mark.torch
def test_user_code_is_profiled(tmp_path: Path) -> None:
    import torch

    model = torch.nn.Linear(128, 128)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with ValueProfiler() as values:
        for _ in range(4):
            optimizer.zero_grad(set_to_none=False)
            model(torch.randn(64, 128)).square().mean().backward()
            optimizer.step()
    profile = values.profile
    (found,) = [one for one in profile.findings if one.pattern == "dead initialisation"]
    assert found.operator == "aten::zero_"
    assert Path(found.place.file) == Path(__file__)
    assert "set_to_none=False" in Path(__file__).read_text().splitlines()[found.place.line - 1]
    saved = values.save(tmp_path / "kept")
    assert json.loads(saved.read_text())["state"] == "finished"
    assert read_profile(saved).findings == profile.findings


@pytest.mark.torch
def test_code_that_fails_leaves_what_was_found() -> None:
    import torch

    values = ValueProfiler()
    with pytest.raises(RuntimeError), values:
        torch.zeros(10000).zero_().view(7)
    assert values.profile.state == "crashed"
    assert [one.pattern for one in values.profile.findings] == ["redundant write"]
