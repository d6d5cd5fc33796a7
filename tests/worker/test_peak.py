"""Peak rates in the worker: what is counted, and limits of sizes."""

import pytest

pytestmark = pytest.mark.torch


def test_the_best_of_runs_is_the_shortest() -> None:
    import time

    from torchyard.worker.bench.peak import best_time_s

    naps = iter([0.0, 0.006, 0.5, 0.05, 0.5])
    best_s, runs = best_time_s(lambda: time.sleep(next(naps)), "cpu", 0.0)
    assert runs == 3
    assert 0.05 <= best_s < 0.5


def test_bytes_are_those_of_all_arrays() -> None:
    from torchyard.worker.bench.peak import answer

    for kind, size in (("copy", 8_000), ("triad", 12_000)):
        response = answer(kind, "cpu", size=size, seconds=0.0)
        assert response["bytes_per_second"] * response["call_s"] == pytest.approx(size)


def test_operations_of_a_product() -> None:
    from torchyard.worker.bench.peak import answer

    response = answer("product", "cpu", "float32", 32, 0.0)
    assert response["flops_per_second"] == pytest.approx(2 * 32**3 / response["call_s"])
    assert answer("product", "cpu", "bfloat16", 8, 0.0)["runs"] >= 3
    assert answer("product", "cpu", "amp", 8, 0.0)["runs"] >= 3


def test_limits_are_of_this_machine() -> None:
    from torchyard.worker.bench.peak import answer

    response = answer("limits", "cpu")
    assert 2**15 <= response["last_cache_bytes"] < 2**34
    assert response["free_bytes"] > 2**20


def test_sizes_of_caches_as_the_kernel_writes_them() -> None:
    from torchyard.worker.host_memory import bytes_of

    assert [bytes_of(text) for text in ("32768K", "2M", "1G", "512", "")] == [
        32 * 2**20,
        2 * 2**20,
        2**30,
        512,
        0,
    ]


def test_anything_else_is_refused() -> None:
    from torchyard.worker.bench.peak import answer
    from torchyard.worker.workload import CannotBuild

    with pytest.raises(CannotBuild, match="'speed'"):
        answer("speed", "cpu")
