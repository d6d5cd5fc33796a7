"""The context of the checks: variables, compilers, programs that do not answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builds.doctor.fake_machine import GPP_OUTPUT, FakeMachine
from torchyard.builds.recipe import EnvironmentTable, Recipe


class TestVariables:
    def test_variables_of_a_plan_are_those_of_its_compiling_steps(
        self, machine: FakeMachine
    ) -> None:
        machine.variables["ONLY_IN_THE_SHELL"] = "1"
        plan = machine.plan(Recipe(name="x"), variables={"PATH": "/made/for/the/build"})
        context = machine.context(Recipe(name="x"), plan=plan)
        assert dict(context.variables) == {"PATH": "/made/for/the/build"}

    def test_variables_of_a_recipe_override_those_of_the_shell(self, machine: FakeMachine) -> None:
        table = EnvironmentTable(path=("/first",), variables={"CUDA_HOME": "/cuda"})
        context = machine.context(Recipe(name="x", environment=table))
        assert context.variables["PATH"] == f"/first:{machine.bin}"
        assert context.variables["CUDA_HOME"] == "/cuda"
        assert context.variables["HOME"] == str(machine.folder)

    def test_a_plan_without_variables_falls_back_to_the_shell(self, machine: FakeMachine) -> None:
        plan = machine.plan(Recipe(name="x"), variables={})
        context = machine.context(Recipe(name="x"), plan=plan)
        assert context.variables["PATH"] == str(machine.bin)

    def test_options_win_and_are_texts(self, machine: FakeMachine) -> None:
        recipe = Recipe(
            name="x",
            environment=EnvironmentTable(variables={"USE_A": "shell", "B": "b"}),
            options={"USE_A": True, "USE_C": False, "JOBS": 3},
        )
        settings = machine.context(recipe).settings(recipe)
        assert (settings["USE_A"], settings["USE_C"]) == ("ON", "OFF")
        assert (settings["JOBS"], settings["B"]) == ("3", "b")


class TestCompilers:
    def test_order_without_variables(self, machine: FakeMachine) -> None:
        machine.says("g++", GPP_OUTPUT.format("12.1.0"))
        assert machine.context().cxx is not None
        machine.says("c++", GPP_OUTPUT.format("13.1.0"))
        cxx = machine.context().cxx
        assert cxx is not None
        assert cxx.version == "13.1.0"

    @pytest.mark.parametrize("output", ["g++-11", "ccache g++-11", "env X=1 g++-11 -m64 -fPIC"])
    def test_variable_with_launcher_and_flags(self, output: str, machine: FakeMachine) -> None:
        machine.says("g++-11", GPP_OUTPUT.format("11.4.0"))
        machine.variables["CXX"] = output
        cxx = machine.context().cxx
        assert cxx is not None
        assert cxx.version == "11.4.0"

    def test_nvcc_by_name_by_home_by_path(self, machine: FakeMachine) -> None:
        machine.nvcc("12.1.105")
        by_home = machine.folder / "cuda"
        machine.nvcc("12.4.131", folder=by_home / "bin")
        by_name = machine.nvcc("12.8.93", folder=machine.folder / "other")

        def version() -> str:
            nvcc = machine.context().nvcc
            assert nvcc is not None
            return nvcc.version

        assert version() == "12.1.105"
        machine.variables["CUDA_HOME"] = str(by_home)
        assert version() == "12.4.131"
        machine.variables["CUDACXX"] = str(by_name)
        assert version() == "12.8.93"

    def test_home_without_a_compiler_falls_back_to_the_path(self, machine: FakeMachine) -> None:
        machine.nvcc("12.1.105")
        machine.variables["CUDA_HOME"] = str(machine.folder / "empty")
        assert machine.context().nvcc is not None


class TestAsking:
    def test_program_that_is_missing(self, machine: FakeMachine) -> None:
        output = machine.context().run_program(("/no/such/program",))
        assert output.exit_code == -1
        assert "No such file" in output.text

    def test_program_that_does_not_end(
        self, machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("torchyard.builds.doctor.context._PROGRAM_LIMIT_S", 0.3)
        path = machine.program("sleeper", "exec /bin/sleep 60")
        output = machine.context().run_program((str(path),))
        assert (output.exit_code, "timed out" in output.text) == (-1, True)

    def test_both_outputs_and_no_input(self, machine: FakeMachine) -> None:
        path = machine.program("echoer", "read line || echo out; echo err >&2; exit 3")
        output = machine.context().run_program((str(path),), folder=Path("/"))
        assert output.exit_code == 3
        assert set(output.text.splitlines()) == {"out", "err"}

    def test_messages_are_in_english(self, machine: FakeMachine) -> None:
        machine.variables["LC_ALL"] = "de_DE.UTF-8"
        path = machine.program("locale", "echo $LC_ALL")
        assert machine.context().run_program((str(path),)).text == "C\n"


class TestWants:
    @pytest.mark.parametrize(
        ("value", "wanted"), [(True, True), ("ON", True), (1, True), (False, False), ("0", False)]
    )
    def test_cuda_by_option(
        self, value: bool | str | int, wanted: bool, machine: FakeMachine
    ) -> None:
        recipe = Recipe(name="x", options={"USE_CUDA": value})
        assert machine.context(recipe).wants_cuda is wanted

    def test_a_toolkit_that_happens_to_be_here_is_not_wanted(self, machine: FakeMachine) -> None:
        machine.nvcc("12.4.131")
        assert not machine.context(Recipe(name="openblas")).wants_cuda
        assert machine.context().wants_cuda
