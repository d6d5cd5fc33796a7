"""Real libraries compiled by gcc, with typical linking errors."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.builds.verify.sample_components import (
    make_component,
    make_library,
    make_module,
    make_subject,
    needs_gcc,
    run_here,
)
from torchyard.builds import recipe as grammar
from torchyard.builds.plan import Component
from torchyard.builds.record import CheckFinding
from torchyard.builds.verify.linked_libraries import check_libraries, read_links, real_paths
from torchyard.builds.verify.target_python import EnvironmentFolders, Subject
from torchyard.builds.verify.verification import perform_verify

pytestmark = needs_gcc
ORIGIN = "$ORIGIN"


@pytest.fixture
def component(tmp_path: Path) -> Component:
    return make_component(tmp_path, libraries=("lib/libpart.so",))


def prefix_library(component: Component, name: str = "libpart.so") -> Path:
    return Path(component.prefix, "lib", name)


def findings(component: Component, **changes: object) -> list[CheckFinding]:
    return list(check_libraries(make_subject(component, **changes)).findings)


def test_a_good_library(component: Component) -> None:
    other = make_library(prefix_library(component, "libother.so.1"), soname="libother.so.1")
    make_library(prefix_library(component), needs=[other], rpath=ORIGIN)
    checked = check_libraries(make_subject(component))
    assert checked.findings == ()
    found = {library.name: library for library in checked.libraries}
    assert found["libother.so.1"].path == str(other)
    assert found["libother.so.1"].wanted_by == ("libpart.so",)
    assert found["libc.so.6"].path.endswith("libc.so.6")


def test_a_pattern_that_matches_nothing(component: Component) -> None:
    (found,) = findings(component)
    assert found.what == "no library matches lib/libpart.so"
    assert component.prefix in found.why


def test_a_pattern_must_stay_below_its_place(tmp_path: Path) -> None:
    make_library(tmp_path / "libpart.so")
    outside = make_component(tmp_path, libraries=("../libpart.so",))
    assert [found.level for found in findings(outside)] == ["failure"]


def test_a_library_that_is_not_found(component: Component, tmp_path: Path) -> None:
    gone = make_library(tmp_path / "gone/libgone.so.3", soname="libgone.so.3")
    middle = make_library(
        prefix_library(component, "libmiddle.so"), soname="libmiddle.so", needs=[gone]
    )
    make_library(prefix_library(component), needs=[middle], rpath=ORIGIN)
    (found,) = findings(component)
    assert found.level == "failure"
    assert found.what == "libpart.so needs libgone.so.3, which was not found"
    assert found.why == "a dependency of a library that libpart.so needs"


def test_the_driver_is_not_missing_on_a_machine_without_a_gpu(
    component: Component, tmp_path: Path
) -> None:
    driver = make_library(tmp_path / "gone/libcuda.so.1", soname="libcuda.so.1")
    make_library(prefix_library(component), needs=[driver])

    def levels(devices: Path) -> list[str]:
        report = perform_verify(component, root="", run=run_here, device_folder=devices)
        return [found.level for found in report.findings if "libcuda" in found.what]

    assert levels(tmp_path / "no-devices") == ["warning"]
    (tmp_path / "devices").mkdir()
    (tmp_path / "devices/nvidiactl").touch()
    assert levels(tmp_path / "devices") == ["failure"]


def test_an_older_copy_without_the_required_version(component: Component, tmp_path: Path) -> None:
    """The GLIBCXX_3.4.NN of many bug reports: linked against a newer copy than is found."""
    script = tmp_path / "versions"
    script.write_text("OLD_1 { global: base; local: *; };\nNEW_2 { global: extra; } OLD_1;\n")
    both = "int base(void) { return 1; }\nint extra(void) { return 2; }\n"
    flags = [f"-Wl,--version-script={script}"]
    newer = make_library(tmp_path / "new/libv.so.1", soname="libv.so.1", code=both, flags=flags)
    old_script = tmp_path / "old-versions"
    old_script.write_text("OLD_1 { global: base; local: *; };\n")
    make_library(
        prefix_library(component, "libv.so.1"),
        soname="libv.so.1",
        code="int base(void) { return 1; }\n",
        flags=[f"-Wl,--version-script={old_script}"],
    )
    use = "int extra(void);\nint use(void) { return extra(); }\n"
    make_library(prefix_library(component), needs=[newer], rpath=ORIGIN, code=use)
    whats = [found.what for found in findings(component)]
    older = prefix_library(component, "libv.so.1")
    assert whats == [f"libpart.so needs NEW_2, which {older} does not have"]


def test_two_openmp_runtimes(component: Component) -> None:
    gnu = make_library(prefix_library(component, "libgomp.so.1"), soname="libgomp.so.1")
    llvm = make_library(prefix_library(component, "libomp.so.5"), soname="libomp.so.5")
    make_library(prefix_library(component), needs=[gnu, llvm], rpath=ORIGIN)
    (found,) = findings(component)
    assert found.level == "failure"
    assert found.what == "2 OpenMP runtimes in one process: GNU and LLVM"
    assert str(gnu) in found.why
    assert str(llvm) in found.why


def test_intel_s_runtime_under_another_name_is_the_same_file(component: Component) -> None:
    """LLVM installs libiomp5.so as a link to libomp.so: that is one runtime."""
    llvm = make_library(prefix_library(component, "libomp.so"), soname="libomp.so")
    intel = prefix_library(component, "libiomp5.so")
    intel.symlink_to("libomp.so")
    other = make_library(
        prefix_library(component, "libuser.so"), soname="libuser.so", needs=[llvm], rpath=ORIGIN
    )
    make_library(prefix_library(component), needs=[intel, other], rpath=ORIGIN)
    assert findings(component) == []


def test_a_second_copy_of_one_runtime_is_a_warning(component: Component, tmp_path: Path) -> None:
    gnu = make_library(prefix_library(component, "libgomp.so.1"), soname="libgomp.so.1")
    make_library(prefix_library(component), needs=[gnu], rpath=ORIGIN)
    bundled = "/site/numpy.libs/libgomp-98b21ff3.so.1.0.0"
    (found,) = findings(component, module=make_module([str(gnu), bundled]))
    assert found.level == "warning"
    assert bundled in found.why


def test_two_copies_of_libstdcxx(tmp_path: Path) -> None:
    component = make_component(tmp_path, libraries=("lib/lib[ab].so",))
    for name in ("a", "b"):
        folder = Path(component.prefix, "lib", f"only-{name}")
        mine = make_library(folder / "libstdc++.so.6", soname="libstdc++.so.6")
        library = prefix_library(component, f"lib{name}.so")
        make_library(library, needs=[mine], rpath=f"$ORIGIN/only-{name}")
    whats = [found.what for found in findings(component)]
    assert "2 copies of libstdc++ in one process" in whats


def test_a_module_alone_is_enough_to_see_two_runtimes(tmp_path: Path) -> None:
    component = make_component(tmp_path)
    module = make_module(["/a/libgomp.so.1.0.0", "/b/libiomp5.so", "/c/libm.so.6"])
    (found,) = findings(component, module=module)
    assert "GNU and Intel" in found.what


def test_the_system_s_copy_instead_of_the_built_one(component: Component, tmp_path: Path) -> None:
    system = make_library(tmp_path / "system/libblas.so.3", soname="libblas.so.3")
    make_library(prefix_library(component, "libblas.so.3"), soname="libblas.so.3")
    make_library(prefix_library(component), needs=[system], rpath=str(tmp_path / "system"))
    (found,) = findings(component)
    assert found.level == "failure"
    assert found.what == f"libblas.so.3 is loaded from {system}, not from the build"
    assert str(prefix_library(component).parent) in found.fix


def test_a_library_of_the_environment_counts_as_ours(component: Component, tmp_path: Path) -> None:
    """A conda environment has a libstdc++ of its own, and the system's must not win."""
    system = make_library(tmp_path / "system/libz.so.1", soname="libz.so.1")
    make_library(tmp_path / "env/lib/libz.so.1", soname="libz.so.1")
    make_library(prefix_library(component), needs=[system], rpath=str(tmp_path / "system"))
    environment = EnvironmentFolders(prefix=str(tmp_path / "env"))
    (found,) = findings(component, environment=environment)
    assert found.what == f"libz.so.1 is loaded from {system}, not from the build"
    assert findings(component, environment=EnvironmentFolders(prefix="/usr")) == []


def test_what_the_process_loaded_beats_what_ldd_says(component: Component, tmp_path: Path) -> None:
    """The interpreter's own search path is not seen by ldd, and the process is right."""
    gone = make_library(tmp_path / "env/lib/libpreloaded.so.1", soname="libpreloaded.so.1")
    library = make_library(prefix_library(component), needs=[gone])
    assert len(findings(component)) == 1, "alone, it is not found"
    loaded = make_module([str(library), str(gone)])
    assert findings(component, module=loaded) == []
    not_loaded = make_module([str(gone)])
    assert len(findings(component, module=not_loaded)) == 1, "a library that nobody loaded"


def test_another_loaded_file_of_the_same_name(component: Component, tmp_path: Path) -> None:
    """Torch and its extensions all have a `_C.so`."""
    gone = make_library(tmp_path / "env/lib/libc10.so", soname="libc10.so")
    library = make_library(prefix_library(component), needs=[gone])
    twin = make_library(tmp_path / "a/torch" / library.name)
    loaded = make_module([str(twin), str(library), str(gone)])
    assert findings(component, module=loaded) == []


def test_a_search_path_into_the_build_tree(component: Component) -> None:
    tree = Path(component.tree, "build/lib")
    make_library(prefix_library(component), rpath=f"{tree}:$ORIGIN")
    (found,) = findings(component)
    assert found.level == "warning"
    assert str(tree) in found.why


def test_a_library_taken_from_the_build_tree(component: Component) -> None:
    inner = make_library(Path(component.tree, "build/lib/libinner.so"), soname="libinner.so")
    make_library(prefix_library(component), needs=[inner], rpath=str(inner.parent))
    (found,) = findings(component)
    assert found.level == "failure"
    assert found.what == "libpart.so loads libinner.so from the build tree"


def test_an_editable_install_lives_in_its_tree(tmp_path: Path) -> None:
    component = make_component(
        tmp_path,
        libraries=("part/lib/libpart.so",),
        builder="python",
        python_table=grammar.PythonTable(install="editable"),
    )
    tree = Path(component.tree)
    inner = make_library(tree / "build/lib/libinner.so", soname="libinner.so")
    make_library(tree / "part/lib/libpart.so", needs=[inner], rpath=str(inner.parent))
    assert findings(component) == []


def test_text_files_among_the_matches_are_omitted(component: Component) -> None:
    path = prefix_library(component)
    path.parent.mkdir()
    path.write_text("INPUT(libreal.so)\n")
    assert findings(component) == []
    assert read_links(make_subject(component), [str(path)]) == ()


def test_a_target_without_ldd(component: Component) -> None:
    def run(argv: Sequence[str], variables: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [f"/nonexistent/{argv[0]}"], capture_output=True, text=True, check=False
        )

    make_library(prefix_library(component))
    (found,) = findings(component, run=run)
    assert found.level == "warning"
    assert "libc-bin" in found.fix


def test_a_path_inside_a_root_is_found_below_it(tmp_path: Path) -> None:
    root = tmp_path / "root"
    make_library(root / "usr/lib/libpart.so")
    subject: Subject = make_subject(make_component(tmp_path), root=str(root))
    assert subject.outside("/usr/lib/libpart.so") == root / "usr/lib/libpart.so"
    shared = str(tmp_path / "prefix")
    assert subject.outside(shared) == Path(shared), "shared folders have one path for both"


def test_links_are_followed_inside_the_target(tmp_path: Path) -> None:
    real = tmp_path / "real file.so"
    real.write_text("")
    link = tmp_path / "link.so"
    link.symlink_to(real)
    paths = [str(link), str(real), str(link)]
    expected = {str(link): str(real.resolve()), str(real): str(real.resolve())}
    assert real_paths(run_here, paths, root="") == expected
    assert real_paths(run_here, paths, root="/") == expected
