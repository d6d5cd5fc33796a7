"""CPU lists and NUMA nodes in study files."""

from __future__ import annotations

import pytest

from torchyard.bench.variant_text import check_cores, check_memory
from torchyard.core.cpu_lists import split_cpus
from torchyard.errors import UsageError


def test_lists_are_put_in_their_shortest_form() -> None:
    assert check_cores("", where="x") == ""
    assert check_cores(" 0,1,2,7 ", where="x") == "0-2,7"
    assert check_memory("", where="x") == ""
    assert check_memory("bind:0", where="x") == "bind:0"
    assert check_memory("interleave:0,1", where="x") == "interleave:0-1"


@pytest.mark.parametrize("text", ["all", "3-", ",", "1-2-3", "-1"])
def test_invalid_lists(text: str) -> None:
    with pytest.raises(UsageError, match=r"environments\.x\.cores") as caught:
        check_cores(text, where="environments.x.cores")
    assert caught.value.hint


@pytest.mark.parametrize("text", ["0", "bind", "bind:", "near:0", "bind:x"])
def test_invalid_memory_nodes(text: str) -> None:
    with pytest.raises(UsageError, match=r"environments\.x\.memory"):
        check_memory(text, where="environments.x.memory")


def test_instances_get_adjacent_processors() -> None:
    assert split_cpus((0, 1, 2, 3), 2) == ((0, 1), (2, 3))
    assert split_cpus((4, 0, 2), 2) == ((0, 2), (4,))
    assert split_cpus((0, 1), 1) == ((0, 1),)
    assert split_cpus((0, 1), 3) == ((0,), (1,), (0,))
