"""The flow graph: marked waste, views, layout, DOT and JSON."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from dataclasses import replace
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.values.hostile_values import HOSTILE, hostile_profile
from tests.values.sample_profile import (
    MODEL,
    large_flow,
    place,
    sample_findings,
    sample_flow,
    sample_profile,
)
from torchyard.presentation.html_page import asset
from torchyard.values.model import FlowEdge, FlowGraph, FlowNode, Place, ValueFinding, ValueProfile
from torchyard.values.report.descriptions import ordered
from torchyard.values.report.findings_text import FLOW_SCHEMA, flow_dot, flow_json
from torchyard.values.report.flow_graph import (
    MOST_NODES,
    FlowView,
    NodeWaste,
    line_groups,
    module_groups,
    views_of,
    waste_links,
    waste_of_nodes,
)
from torchyard.values.report.flow_picture import (
    GROUP_FIELDS,
    NODE_FIELDS,
    LayoutFailed,
    _laid_out,
    _shelves,
    flow_page,
    layout_edges,
    place_nodes,
)

needs_layout = pytest.mark.skipif(
    find_spec("fast_sugiyama") is None, reason="the picture needs torchyard[graph]"
)
BARE = ValueProfile(format=1, state="finished", torch="2.13.0")
QUOTED = r'"(?:[^"\\]|\\.)*"'
VALUE = rf"(?:{QUOTED}|[a-zA-Z_][a-zA-Z_0-9]*|-?[0-9.]+)"
ATTRIBUTES = rf" \[[a-z]+={VALUE}(?:, [a-z]+={VALUE})*\];"
STATEMENT = re.compile(rf"  (?:{QUOTED}(?: -> {QUOTED})?|graph|node|edge){ATTRIBUTES}")


def node(number: int, size: int = 1, *, module: str = "", backward: bool = False) -> FlowNode:
    return FlowNode(
        id=number,
        operator=f"aten::op{number}",
        place=Place(file="a.py", line=number, module=module, backward=backward),
        calls=1,
        written_bytes=size,
    )


def edge(writer: int, reader: int, size: int = 1) -> FlowEdge:
    return FlowEdge(writer=writer, reader=reader, count=1, bytes=size)


def chain(length: int, *, heavy: tuple[int, ...] = ()) -> FlowGraph:
    nodes = tuple(node(n, 1000 if n in heavy else 1) for n in range(length))
    return FlowGraph(nodes=nodes, edges=tuple(edge(n, n + 1, 10 + n) for n in range(length - 1)))


def test_a_finding_belongs_to_every_node_of_its_cause() -> None:
    profile = sample_profile()
    findings = ordered(profile)
    waste = waste_of_nodes(profile, findings)
    unchanged = next(n for n, one in enumerate(findings) if one.pattern == "unchanged across steps")
    nodes = [node for node, found in waste.items() if unchanged in found.findings]
    assert {profile.flow.nodes[n].operator for n in nodes} == {"aten::tril"}
    assert len(nodes) == 3
    assert all(waste[n].share == 1.0 for n in nodes)


def test_the_share_is_that_of_the_bytes_of_all_its_nodes() -> None:
    flow = FlowGraph(nodes=(node(0, 100), replace(node(0, 300), id=1)))
    finding = ValueFinding(
        pattern="x", operator="aten::op0", place=flow.nodes[0].place, bytes_wasted=100, node=0
    )
    profile = replace(BARE, flow=flow)
    waste = waste_of_nodes(profile, [finding])
    assert waste == {
        0: NodeWaste(share=0.25, findings=(0,)),
        1: NodeWaste(share=0.25, findings=(0,)),
    }
    worse = replace(finding, bytes_wasted=10_000)
    both = waste_of_nodes(profile, [finding, worse])
    assert both[0] == NodeWaste(share=1.0, findings=(0, 1))


def test_the_same_operator_inside_another_is_another_cause() -> None:
    inner = replace(node(0, 100), id=1, path=("aten::outer",))
    flow = FlowGraph(nodes=(node(0, 100), inner))
    finding = ValueFinding(
        pattern="x",
        operator="aten::op0",
        path=("aten::outer",),
        place=inner.place,
        bytes_wasted=50,
        node=1,
    )
    assert set(waste_of_nodes(replace(BARE, flow=flow), [finding])) == {1}


def test_findings_whose_node_is_nowhere_mark_nothing() -> None:
    finding = replace(sample_findings()[5], node=10**6)
    assert waste_of_nodes(sample_profile(), [finding]) == {}
    assert waste_links(sample_profile(), [finding]) == []


def test_a_duplicate_is_linked_to_what_it_repeats() -> None:
    profile = sample_profile()
    links = waste_links(profile, profile.findings)
    said = {(link.node, link.relation): profile.flow.nodes[link.other] for link in links}
    assert said[8, "the same bits as"].place == place(13, "layers.0.attn", file=MODEL)
    assert said[19, "overwritten by"].operator == "aten::mse_loss_backward"


def test_views_grow_and_the_heaviest_are_in_all() -> None:
    flow = large_flow(2500, 5000)
    views = views_of(flow, {})
    sizes = [view for view in views if view.kind == "heaviest"]
    assert [len(view.members) for view in sizes] == [60, 300, 1000, 2500]
    for small, large in pairwise(sizes):
        assert set(small.members) < set(large.members)
        assert small.share < large.share
    assert sizes[-1].share == 1.0
    heaviest = max(range(2500), key=lambda n: flow.nodes[n].written_bytes)
    assert heaviest in sizes[0].members
    assert [view.kind for view in views] == ["heaviest"] * 4 + ["modules"]


def test_what_is_wasteful_is_shown_however_little_it_writes() -> None:
    flow = chain(200, heavy=tuple(range(100, 200)))
    views = views_of(flow, {3: NodeWaste(share=1.0, findings=(0,))})
    assert 3 in views[0].members
    waste = next(view for view in views if view.kind == "waste")
    assert waste.members == (2, 3, 4)


def test_wasteful_lines_are_shown_with_adjacent_lines_and_layers_as_one() -> None:
    # Two layers of the same class: line 1 writes what line 2 wastes and line 3 reads.
    nodes = tuple(
        FlowNode(
            id=10 * layer + line,
            operator="aten::op",
            place=Place(file="a.py", line=line, module=f"layers.{layer}"),
            calls=1,
            written_bytes=100,
        )
        for layer in range(2)
        for line in range(1, 6)
    )
    edges = tuple(
        edge(10 * layer + line, 10 * layer + line + 1) for layer in range(2) for line in range(1, 5)
    )
    flow = FlowGraph(nodes=nodes, edges=edges, classes={"layers.0": "Layer", "layers.1": "Layer"})
    waste = {10 * layer + 2: NodeWaste(share=0.5, findings=(0,)) for layer in range(2)}
    view = next(view for view in views_of(flow, waste) if view.kind == "lines")
    groups = [line_groups(flow)[number] for number in view.members]
    assert [(one.line, one.kind, one.module) for one in groups] == [
        (line, "Layer", "layers.0 and 1 more") for line in (1, 2, 3)
    ]
    assert [(one.writer, one.reader, one.bytes) for one in view.edges] == [(0, 1, 2), (1, 2, 2)]
    assert view.share == 1.0
    apart = line_groups(replace(flow, classes={}))
    assert len(apart) == 10


def test_the_lines_with_the_most_waste_are_shown() -> None:
    flow = FlowGraph(nodes=tuple(node(n, n) for n in range(1, 101)))
    waste = {n: NodeWaste(share=1.0, findings=(0,)) for n in range(1, 101)}
    view = next(view for view in views_of(flow, waste) if view.kind == "lines")
    shown = {line_groups(flow)[number].line for number in view.members}
    assert shown == set(range(81, 101))
    assert 0.0 < view.share < 1.0


def test_data_through_what_is_not_shown_is_an_edge() -> None:
    flow = chain(100, heavy=(0, *range(40, 99)))
    view = views_of(flow, {})[0]
    assert view.members == (0, *range(40, 99))
    across = [edge for edge in view.edges if edge.passed]
    assert [(edge.writer, edge.reader, edge.bytes) for edge in across] == [(0, 1, 10)]
    assert len(view.edges) == 1 + 58


def test_a_view_stays_as_connected_as_the_graph() -> None:
    flow = large_flow(1200, 2400)
    view = views_of(flow, {})[0]
    reached = {edge.reader for edge in view.edges}
    assert len(reached) > len(view.members) * 0.8


def test_edges_from_outside_and_nowhere_and_to_oneself_are_not_drawn() -> None:
    flow = FlowGraph(
        nodes=(node(5), node(9)),
        edges=(edge(-1, 5), edge(77, 9), edge(5, 5), edge(5, 9), edge(5, 88)),
    )
    view = views_of(flow, {})[0]
    assert [(edge.writer, edge.reader) for edge in view.edges] == [(0, 1)]


def test_more_nodes_than_can_be_drawn_are_left_out() -> None:
    flow = FlowGraph(nodes=tuple(node(n, n) for n in range(MOST_NODES + 50)))
    view = [view for view in views_of(flow, {}) if view.kind == "heaviest"][-1]
    assert len(view.members) == MOST_NODES
    assert min(view.members) == 50


def test_an_empty_graph_has_no_views() -> None:
    assert views_of(FlowGraph(), {}) == []


def test_modules_are_cut_until_they_are_few() -> None:
    nodes = [
        node(n, module=f"encoder.layers.{n % 50}.{'abc'[n % 3]}.{n}", backward=n % 2 == 1)
        for n in range(600)
    ]
    groups = module_groups(FlowGraph(nodes=tuple(nodes)))
    assert len(groups) == 50
    assert {group.module.count(".") for group in groups} == {2}
    assert sorted(n for group in groups for n in group.nodes) == list(range(600))
    assert all(len({nodes[n].place.backward for n in group.nodes}) == 1 for group in groups)


def test_modules_are_joined_by_what_flows_between_them() -> None:
    view = next(v for v in views_of(sample_flow(), {}) if v.kind == "modules")
    groups = module_groups(sample_flow())
    names = [(group.module, group.backward) for group in groups]
    pairs = {(names[edge.writer], names[edge.reader]) for edge in view.edges}
    assert (("embed", False), ("layers.0.attn", False)) in pairs
    assert all(writer != reader for writer, reader in pairs)


@given(
    st.integers(2, 40).flatmap(
        lambda n: st.tuples(
            st.just(n),
            st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=120),
        )
    )
)
def test_the_layout_sees_no_cycle_and_every_node_that_can_be_reached(
    graph: tuple[int, list[tuple[int, int]]],
) -> None:
    count, edges = graph
    kept = layout_edges(count, edges)
    assert len(kept) == len(set(kept))
    assert all(writer < reader and (writer, reader) in edges for writer, reader in kept)
    readers = {reader for writer, reader in edges if writer < reader}
    assert {reader for _, reader in kept} == readers


def test_the_layout_does_not_see_long_edges() -> None:
    edges = [(n, n + 1) for n in range(99)] + [(n, 99 - n) for n in range(40)]
    kept = layout_edges(100, edges)
    assert set(kept) >= {(n, n + 1) for n in range(99)}
    assert max(reader - writer for writer, reader in kept) <= 3


@needs_layout
@settings(max_examples=10, deadline=None)
@given(
    st.integers(1, 30).flatmap(
        lambda n: st.tuples(
            st.just(n),
            st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=60),
        )
    )
)
def test_no_two_nodes_share_a_spot_and_data_flows_down(
    graph: tuple[int, list[tuple[int, int]]],
) -> None:
    count, edges = graph
    spots = place_nodes(count, edges)
    assert len(spots) == len(set(spots)) == count
    for writer, reader in layout_edges(count, edges):
        assert spots[writer][1] < spots[reader][1]


@needs_layout
def test_the_layout_is_deterministic() -> None:
    flow = sample_flow()
    edges = [(one.writer, one.reader) for one in flow.edges if one.writer >= 0]
    assert place_nodes(len(flow.nodes), edges) == place_nodes(len(flow.nodes), edges)


@needs_layout
def test_numbers_that_nothing_is_connected_to_make_no_difference() -> None:
    chain = [(n, n + 1) for n in range(30)] + [(n, n + 3) for n in range(0, 27, 3)]
    apart = [(2 * writer, 2 * reader) for writer, reader in chain]
    near, far = place_nodes(31, chain), place_nodes(61, apart)
    assert [far[2 * n] for n in range(31)] == near
    # Each once: places that only edges pass through have numbers, too.
    (part,) = _laid_out(apart, 30.0)
    assert [number for number, *_ in part] == list(range(0, 61, 2))


@needs_layout
@pytest.mark.parametrize("form", ["star", "fan", "chain", "loose"])
def test_ten_thousand_nodes_of_any_form_are_placed(form: str) -> None:
    count = 10_000
    edges = {
        "star": [(0, n) for n in range(1, count)],
        "fan": [(n, count - 1) for n in range(count - 1)],
        "chain": [(n, n + 1) for n in range(count - 1)],
        "loose": [],
    }[form]
    assert len(set(place_nodes(count, edges))) == count


@needs_layout
def test_layout_timeouts_and_crashes_are_reported() -> None:
    with pytest.raises(LayoutFailed, match="timed out after"):
        place_nodes(3000, [(n // 2, n) for n in range(1, 3000)], limit_s=0.01)
    # What `layout_edges` never lets through: the library ends its process on it.
    with pytest.raises(LayoutFailed, match="the layout failed"):
        _laid_out([(0, 0)], 30.0)


def test_parts_are_set_side_by_side_and_then_in_rows() -> None:
    single = [[(n, 0.0, 0.0)] for n in range(48)]
    corners = _shelves(single)
    assert len(set(corners)) == 48
    assert max(x for x, _ in corners) == 11
    assert _shelves([]) == []
    wide, tall = [(0, 0.0, 0.0), (1, 9.0, 1.0)], [(2, 0.0, 0.0), (3, 0.0, 5.0)]
    assert _shelves([wide, tall]) == [(0.0, 0.0), (0.0, 3.0)]


@needs_layout
def test_a_large_graph_in_bounded_time() -> None:
    profile = sample_profile(flow=large_flow())
    started = time.process_time()
    page = flow_page(profile, ordered(profile), {})
    assert time.process_time() - started < 30
    assert page.problems == ()
    assert page.picture is not None
    assert len(json.dumps(page.picture.data)) < 4_000_000
    assert len(page.rows) == 40


def test_the_script_reads_what_the_page_writes() -> None:
    script = asset("flow_items.js")
    for name, fields in (("NODE_FIELDS", NODE_FIELDS), ("GROUP_FIELDS", GROUP_FIELDS)):
        found = re.search(rf"const {name} = (\[.*?\]);", script)
        assert found is not None
        assert tuple(json.loads(found[1])) == fields


def check_dot(text: str, folder: Path) -> None:
    """By Graphviz where it is installed, and by the form of every line."""
    lines = text.splitlines()
    assert lines[0] == "digraph values {"
    assert lines[-1] == "}"
    for line in lines[1:-1]:
        assert STATEMENT.fullmatch(line), line
    if shutil.which("dot"):
        path = folder / "flow.dot"
        path.write_text(text, encoding="utf-8")
        subprocess.run(["dot", "-Tcanon", str(path)], check=True, capture_output=True, timeout=60)


def test_dot(tmp_path: Path) -> None:
    text = flow_dot(sample_profile())
    check_dot(text, tmp_path)
    nodes = [line for line in text.splitlines() if re.match(r'  "n\d+" \[', line)]
    assert len(nodes) == len(sample_flow().nodes)
    assert text.count(" -> ") == len(sample_flow().edges) + 2
    assert 'label="external memory"' in text
    assert '"n8" -> "n3" [style=dashed' in text
    assert 'fillcolor="#b34700", fontcolor="#ffffff"' in text


@pytest.mark.parametrize("evil", HOSTILE)
def test_names_cannot_leave_their_quotes(tmp_path: Path, evil: str) -> None:
    text = flow_dot(hostile_profile(evil))
    text.encode()
    check_dot(text, tmp_path)
    assert text.count("\n") == flow_dot(sample_profile()).count("\n")
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text)
    assert len(text) < 200_000


def test_dot_of_ids_and_edges_that_make_no_sense(tmp_path: Path) -> None:
    odd = FlowGraph(
        nodes=(replace(node(1), id=-7),), edges=(edge(-7, 99), edge(99, -7), edge(-7, -7))
    )
    text = flow_dot(replace(BARE, flow=odd))
    check_dot(text, tmp_path)
    assert text.count(" -> ") == 1
    check_dot(flow_dot(BARE), tmp_path)


def test_json_has_the_graph_and_what_findings_say_of_it() -> None:
    document = json.loads(flow_json(sample_profile()))
    assert document["schema"] == FLOW_SCHEMA
    assert document["schema_version"] == 1
    assert len(document["nodes"]) == len(sample_flow().nodes)
    assert len(document["edges"]) == len(sample_flow().edges)
    tril = document["nodes"][3]
    assert tril["waste_share"] == 1.0
    assert {document["findings"][n]["pattern"] for n in tril["findings"]} == {
        "duplicate",
        "unchanged across steps",
    }
    assert next(e for e in document["edges"] if e["writer"] == 3)["waste_share"] == 1.0
    assert {link["relation"] for link in document["links"]} == {
        "the same bits as",
        "overwritten by",
    }
    assert json.loads(flow_json(BARE))["nodes"] == []


@pytest.mark.parametrize("evil", HOSTILE)
def test_json_keeps_names_as_they_are(evil: str) -> None:
    assert json.loads(flow_json(hostile_profile(evil)))["nodes"][0]["operator"] == evil


def test_views_say_what_they_left_out() -> None:
    crowded = FlowGraph(
        nodes=tuple(node(n, 1) for n in range(300)),
        edges=tuple(edge(a, b, a + b) for a in range(300) for b in range(a + 1, 300)),
    )
    views: list[FlowView] = views_of(crowded, {})
    assert views[-1].edges_left_out == 300 * 299 // 2 - 30_000
