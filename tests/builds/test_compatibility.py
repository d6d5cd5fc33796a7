"""The compatibility table: all releases, correct ranges, findings with reasons."""

from __future__ import annotations

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from torchyard.builds import compatibility
from torchyard.builds.compatibility import (
    check_versions,
    cuda_toolkit,
    known_releases,
    onednn_acl,
    parse_version,
    release_facts,
    rocm_notes,
    supported_capabilities,
    supports_torch,
    toolkit_supports,
    version_in_range,
)
from torchyard.errors import UsageError

TORCH_RELEASES = tuple(f"2.{minor}" for minor in range(4, 16))


class TestTable:
    def test_has_every_pytorch_release_in_order(self) -> None:
        assert known_releases("pytorch") == TORCH_RELEASES

    @pytest.mark.parametrize("project", ["pytorch", "torchvision", "torchaudio"])
    def test_every_range_and_requirement_can_be_read(self, project: str) -> None:
        for version in known_releases(project):
            facts = release_facts(project, version)
            for limits in (*facts.needs.values(), *facts.prefers.values(), *facts.also_fits):
                SpecifierSet(limits)
            for requirement in facts.build_requires:
                Requirement(requirement)
            assert "python" in facts.needs

    def test_every_bad_combination_is_valid_and_has_a_fix(self) -> None:
        for bad in compatibility._table().bad:
            for limits in (*bad.tools.values(), bad.releases):
                for part in limits.split("|"):
                    SpecifierSet(part)
            assert bad.fix, bad.name
            assert bad.why, bad.name

    def test_companions_agree_in_both_directions(self) -> None:
        for version in TORCH_RELEASES:
            for project, own in release_facts("pytorch", version).companions.items():
                assert supports_torch(project, own, version), (project, own, version)

    def test_toolkits_are_in_order(self) -> None:
        names = [Version(name) for name in compatibility._table().cuda]
        assert names == sorted(names)

    def test_what_the_build_installs_satisfies_what_it_needs(self) -> None:
        # A requirement that allowed what `needs` forbids would make a venv that the doctor refuses.
        tried = [f"{major}.0" for major in range(60, 90)]
        for version in TORCH_RELEASES:
            facts = release_facts("pytorch", version)
            wanted = facts.needs.get("setuptools")
            if wanted is None:
                continue
            (pinned,) = [
                r for r in map(Requirement, facts.build_requires) if r.name == "setuptools"
            ]
            for candidate in tried:
                if pinned.specifier.contains(candidate):
                    assert version_in_range(wanted, candidate), (version, candidate)


class TestReleaseFacts:
    @pytest.mark.parametrize(
        ("version", "front_end"),
        [
            ("2.4", "setup.py"),
            ("2.7.1", "setup.py"),
            ("2.8.0", "setuptools"),
            ("2.13.0+cpu", "setuptools"),
            ("2.14.0", "scikit-build-core"),
            ("v2.15.0", "scikit-build-core"),
        ],
    )
    def test_front_end_depends_on_the_release(self, version: str, front_end: str) -> None:
        assert release_facts("pytorch", version).front_end == front_end

    def test_minor_versions_are_numbers_not_decimals(self) -> None:
        assert release_facts("pytorch", "2.10").version == "2.10"
        assert release_facts("pytorch", "2.1").version == "2.4"

    def test_torch_is_another_name_of_pytorch(self) -> None:
        assert release_facts("torch", "2.6") is release_facts("pytorch", "2.6")

    def test_branch_name_with_a_release_is_that_release(self) -> None:
        facts = release_facts("pytorch", "release/2.6")
        assert (facts.version, facts.exact) == ("2.6", True)

    def test_unknown_newer_release_gets_the_newest_facts_and_a_note(self) -> None:
        facts = release_facts("pytorch", "2.31.0")
        assert facts.version == "2.15"
        assert not facts.exact
        assert "2.31.0 is newer" in facts.notes[0]
        assert facts.notes[1:] == release_facts("pytorch", "2.15").notes

    def test_unknown_older_release_gets_the_oldest_facts_and_a_note(self) -> None:
        facts = release_facts("pytorch", "1.13.1")
        assert facts.version == "2.4"
        assert "1.13.1 is older" in facts.notes[0]

    @pytest.mark.parametrize("version", ["main", "", "nightly", "deadbeef"])
    def test_no_release_number_gets_the_newest_facts(self, version: str) -> None:
        facts = release_facts("pytorch", version)
        assert facts.version == "2.15"
        assert not facts.exact

    def test_unknown_project_is_an_error_that_names_the_known_ones(self) -> None:
        with pytest.raises(UsageError) as caught:
            release_facts("tensorflow", "2.0")
        assert "torchvision" in caught.value.hint

    def test_torchvision_021_must_have_an_old_setuptools(self) -> None:
        facts = release_facts("torchvision", "0.21.0")
        assert not version_in_range(facts.needs["setuptools"], "80.0.0")
        assert version_in_range(facts.needs["setuptools"], "79.0.1")
        assert "setuptools<80" in facts.build_requires


class TestCompanions:
    @pytest.mark.parametrize(
        ("torch", "vision", "audio"),
        [
            ("2.4.1", "0.19", "2.4"),
            ("2.6.0", "0.21", "2.6"),
            ("2.9.1", "0.24", "2.9"),
            ("2.13.0", "0.28", "2.11"),
            ("2.15.0", "0.29", "2.11"),
        ],
    )
    def test_belong_to_their_torch(self, torch: str, vision: str, audio: str) -> None:
        assert release_facts("pytorch", torch).companions == {
            "torchvision": vision,
            "torchaudio": audio,
        }

    def test_vision_of_another_torch_does_not_fit(self) -> None:
        assert supports_torch("torchvision", "0.21.0", "2.6.0")
        assert not supports_torch("torchvision", "0.21.0", "2.13.0+cpu")

    def test_newest_vision_fits_every_newer_torch(self) -> None:
        assert supports_torch("torchvision", "0.29.2", "2.15.0")
        assert not supports_torch("torchvision", "0.29.2", "2.13.0")


class TestOneDnnAndAcl:
    @pytest.mark.parametrize(
        ("onednn", "acl", "fits"),
        [
            ("3.3.6", "23.08", True),
            ("3.3.6", "24.04", False),
            ("3.4.2", "24.04", True),
            ("3.4.2", "23.08", False),
            ("3.8.1", "25.02", False),
            ("3.12.0", "25.03.1", False),
            ("3.7.2", "24.11", False),
            ("3.7.2", "24.11.1", True),
            ("3.7.1", "25.02", True),
            ("3.12.0", "52.6.0", True),
        ],
    )
    def test_range(self, onednn: str, acl: str, fits: bool) -> None:
        limits = onednn_acl(onednn)
        assert limits is not None
        assert version_in_range(limits.accepts, acl) is fits

    def test_limits_are_marked_where_they_were_not_read_in_the_release(self) -> None:
        read, taken_over = onednn_acl("3.7.2"), onednn_acl("3.12.0")
        assert read is not None
        assert taken_over is not None
        assert (read.confirmed, taken_over.confirmed) == (True, False)

    def test_oldest_known(self) -> None:
        assert onednn_acl("2.6.3") is None
        assert onednn_acl("no version") is None

    def test_acl_of_each_release_fits_its_onednn(self) -> None:
        for version in TORCH_RELEASES:
            facts = release_facts("pytorch", version)
            limits = onednn_acl(facts.onednn)
            assert limits is not None
            assert version_in_range(limits.accepts, facts.acl), version


class TestCuda:
    @pytest.mark.parametrize(
        ("cuda", "gcc", "clang"),
        [
            ("11.8.89", 11, 14),
            ("12.1", 12, 15),
            ("12.4.131", 13, 17),
            ("12.7", 13, 18),
            ("13.0", 15, 20),
            ("13.9", 16, 22),
        ],
    )
    def test_host_compiler_limits(self, cuda: str, gcc: int, clang: int) -> None:
        toolkit = cuda_toolkit(cuda)
        assert toolkit is not None
        assert (toolkit.gcc_most, toolkit.clang_most) == (gcc, clang)

    def test_toolkits_before_the_table_are_unknown(self) -> None:
        assert cuda_toolkit("10.2") is None
        assert cuda_toolkit("10.2") is None
        assert cuda_toolkit("rubbish") is None

    @pytest.mark.parametrize(
        ("cuda", "capability", "known"),
        [
            ("11.7", "8.9", False),
            ("11.8", "8.9", True),
            ("12.9", "7.0", True),
            ("13.0", "7.0", False),
            ("13.0", "7.5", True),
            ("12.6", "10.0", False),
            ("12.8", "10.0a", True),
            ("12.9", "12.1f", True),
            ("13.4", "10.7", True),
            ("12.4", "42.0", None),
        ],
    )
    def test_compute_capabilities(self, cuda: str, capability: str, known: bool | None) -> None:
        assert toolkit_supports(cuda, capability) is known

    def test_capabilities_of_a_toolkit_as_its_own_nvcc_lists_them(self) -> None:
        assert supported_capabilities("13.0.88") == (
            *("7.5", "8.0", "8.6", "8.7", "8.8", "8.9", "9.0"),
            *("10.0", "10.3", "11.0", "12.0", "12.1"),
        )

    def test_driver_of_a_toolkit(self) -> None:
        toolkit = cuda_toolkit("12.4")
        assert toolkit is not None
        assert (toolkit.driver_least, toolkit.driver_own) == ("525.60.13", "550.54.14")

    def test_rocm_notes_by_version(self) -> None:
        assert len(rocm_notes("6.2.41133")) == 2
        assert len(rocm_notes("7.13.0")) == 1


class TestCheckVersions:
    def test_a_finding_has_what_why_and_fix(self) -> None:
        (finding,) = check_versions(release_facts("pytorch", "2.8"), {"cmake": "3.25.1"})
        assert finding.severity == "blocks"
        assert finding.what == "cmake 3.25.1 does not fit pytorch 2.8"
        assert finding.why == "pytorch 2.8 needs cmake >=3.27"
        assert finding.fix == "pip install 'cmake>=3.27'"

    def test_a_good_machine_has_no_finding(self) -> None:
        found = {
            "cmake": "3.31.6",
            "ninja": "1.13.2",
            "gcc": "13.3.0",
            "python": "3.12.3",
            "setuptools": "81.0.0",
            "glibc": "2.39",
            "cuda": "13.0.88",
        }
        facts = release_facts("pytorch", "2.13")
        assert check_versions(facts, found, architecture="x86_64") == ()

    def test_preferred_ranges_only_warn(self) -> None:
        findings = check_versions(release_facts("pytorch", "2.10"), {"gcc": "10.4.0"})
        assert [f.severity for f in findings] == ["warns"]

    def test_missing_tools_are_not_checked(self) -> None:
        assert check_versions(release_facts("pytorch", "2.8"), {}) == ()

    def test_cmake_4_blocks_old_releases_until_the_variable_is_set(self) -> None:
        facts = release_facts("pytorch", "2.6")
        (finding,) = check_versions(facts, {"cmake": "4.1.0"})
        assert finding.severity == "blocks"
        assert "CMAKE_POLICY_VERSION_MINIMUM=3.5" in finding.fix
        variables = {"CMAKE_POLICY_VERSION_MINIMUM": "3.5"}
        assert check_versions(facts, {"cmake": "4.1.0"}, variables=variables) == ()
        assert check_versions(release_facts("pytorch", "2.8"), {"cmake": "4.1.0"}) == ()

    def test_cmake_3230_is_bad_for_cuda_only(self) -> None:
        facts = release_facts("pytorch", "2.6")
        assert check_versions(facts, {"cmake": "3.23.0"}) == ()
        (finding,) = check_versions(facts, {"cmake": "3.23.0", "cuda": "11.8"})
        assert "3.23.0" in finding.what

    def test_options_that_are_off_disable_some_findings(self) -> None:
        facts = release_facts("pytorch", "2.4")
        gcc = {"gcc": "13.2.0"}
        (finding,) = check_versions(facts, gcc, architecture="x86_64")
        assert "FBGEMM" in finding.what
        off = {"USE_FBGEMM": "OFF"}
        assert check_versions(facts, gcc, architecture="x86_64", variables=off) == ()

    def test_a_report_is_a_warning_that_says_so(self) -> None:
        found = {"cmake": "3.30.2", "ninja": "1.11.1"}
        (finding,) = check_versions(release_facts("pytorch", "2.4"), found)
        assert finding.severity == "warns"
        assert finding.why.endswith("(a report, not confirmed)")
        assert check_versions(release_facts("pytorch", "2.9"), found) == ()

    @pytest.mark.parametrize(
        ("gcc", "bad"),
        [
            ("10.2.1", True),
            ("10.3.0", False),
            ("11.4.0", False),
            ("11.5.0", True),
            ("12.2.0", False),
            ("13.3.0", True),
            ("13.5.0", False),
            ("14.2.0", True),
            ("14.3.0", False),
        ],
    )
    def test_gcc_that_crashes_on_sve(self, gcc: str, bad: bool) -> None:
        facts = release_facts("pytorch", "2.6")
        arm = check_versions(facts, {"gcc": gcc}, architecture="aarch64")
        assert any("SVE" in finding.what for finding in arm) is bad
        assert check_versions(facts, {"gcc": gcc}, architecture="x86_64") == ()

    def test_new_glibc_with_old_cuda(self) -> None:
        facts = release_facts("pytorch", "2.6")
        (finding,) = check_versions(facts, {"glibc": "2.41", "cuda": "12.9.86"})
        assert finding.severity == "blocks"
        assert check_versions(facts, {"glibc": "2.40", "cuda": "12.9.86"}) == ()
        assert check_versions(facts, {"glibc": "2.41", "cuda": "13.0"}) == ()

    def test_a_build_number_never_decides(self) -> None:
        assert version_in_range("<80", "79.0.1.post20250304")
        assert version_in_range(">=2.14", "2.14.0a0+git1234")
        assert not version_in_range(">=3.27", "3.26.4")

    def test_unparsable_versions_are_accepted(self) -> None:
        assert parse_version("unknown") is None
        assert version_in_range(">=1", "unknown")


@pytest.mark.parametrize(
    ("glibc", "cuda", "function"),
    [
        ("2.41", "12.9", "sinpi"),
        ("2.41", "13.0", ""),
        ("2.42", "13.1", "rsqrt"),
        ("2.42", "13.2", ""),
        ("2.40", "12.9", ""),
    ],
)
def test_clashes_of_glibc_and_cuda(glibc: str, cuda: str, function: str) -> None:
    variables = {"USE_NCCL": "OFF"}
    facts = release_facts("pytorch", "2.13")
    findings = check_versions(facts, {"glibc": glibc, "cuda": cuda}, variables=variables)
    assert [function in finding.why for finding in findings] == ([True] if function else [])
