from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest
import rustworkx
from click.testing import CliRunner
from laid_out import ARCH, Built, lay_out

from scons_gpu.cli import program as command
from scons_gpu.errors import DamagedError, UsageError
from scons_gpu.inspect import graph as graphs
from scons_gpu.inspect.graph import Graph, Node, graph, read
from scons_gpu.inspect.graph_files import Half, Header, Module, Program
from scons_gpu.inspect.graph_find import find
from scons_gpu.inspect.graph_formats import FORMATS, tree
from scons_gpu.inspect.graph_shared import shared, twins
from scons_gpu.inspect.graph_walk import Walk
from scons_gpu.plan.model import Joined, Part, PlannedKernel
from scons_gpu.store.log import BuildLog, rotated

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program of four modules of five kernels; one stands in all, two of each module are twins of all others of them."""
    place = tmp_path_factory.mktemp("laid")
    lay_out(place, Built(twins=2, builds=2))
    return place


@pytest.fixture(scope="module")
def whole(folder: Path) -> Graph:
    return read(folder / ".gpu-store")


def copied(folder: Path, to: Path) -> Path:
    """The same, to be spoiled. Its log names the first folder as its top; its programs are asked for by manifest."""
    shutil.copytree(folder, to / "copy")
    return to / "copy"


def names(graph: Graph, places: Iterable[int], *kinds: str) -> list[str]:
    return [node.name for place in sorted(places) if (node := graph.nodes[place]).kind in (kinds or graphs.KINDS)]


def run(folder: Path, *words: str) -> Any:
    return CliRunner().invoke(command, ["-C", str(folder), *words])


def test_what_is_shared_is_one_node_and_every_part_of_a_program_is_there(whole: Graph) -> None:
    assert Counter(node.kind for node in whole.nodes) == {
        "program": 1,
        "module": 5,
        "fatbin": 4,
        "image": 4,
        "unit": 4 * 4 + 1,
        "object": 4 * 4 + 1,
        "source": 5,
        "header": 4,
        "tool": 5,
    }
    common = whole.nodes[find(whole, "common_0")[0]]
    assert common.modules == ("build/net/m0", "build/net/m1", "build/net/m2", "build/net/m3")
    assert (common.aliases, common.label) == (("_Z8common_0PKfPf",), f"common_0(float const*, float*) {common.digest[:8]} {ARCH}")
    assert [node.ours for node in whole.nodes if node.kind == "header"] == [False, True, True, True]


def test_made_of_and_made_for(whole: Graph) -> None:
    walk = Walk(whole)
    unit = find(whole, "scale_m1_k3")
    assert names(whole, walk.inputs(unit)) == [
        "src/m1.cu",
        "/usr/include/math.h",
        "include/h0.h",
        "include/h1.h",
        "include/h2.h",
        "clang 22.1.8",
        "llvm 22.1.0",
    ]
    assert names(whole, walk.users(unit), "program", "module", "fatbin", "image") == [
        "build/net",
        "m1",
        "net",
        "build/net/m1.fatbin",
        "build/net/m1/sm_90.cubin",
    ]
    assert len(names(whole, walk.users(find(whole, "src/m1.cu")), "unit")) == 4
    assert len(names(whole, walk.users(find(whole, "h1.h")), "unit")) == 17
    assert names(whole, walk.users(find(whole, "program:build/net"))) == []


def test_a_way_is_the_shortest_and_has_no_back(whole: Graph) -> None:
    walk, ends = Walk(whole), (find(whole, "include/h0.h"), find(whole, "build/net.json"))
    way = walk.path(*ends)
    assert [whole.nodes[place].kind for place in way] == [
        "header",
        "source",
        "unit",
        "object",
        "image",
        "fatbin",
        "module",
        "module",
        "program",
    ]
    assert walk.path(*reversed(ends)) == ()
    assert walk.path(ends[0], ends[0]) == ends[0]


def test_names_go_from_the_strictest_to_parts(whole: Graph, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unit = find(whole, "_Z11scale_m0_k4PKfPf")
    digest = whole.nodes[unit[0]].digest
    for name in ("scale_m0_k4(float const*, float*)", "scale_m0_k4", digest, digest[:9], f"unit:{digest}", "unit:m0_k4"):
        assert find(whole, name) == unit, name
    assert names(whole, find(whole, "m0")) == ["m0"], "a module's whole name goes before parts of kernels' names"
    assert find(whole, str(folder / "src/m0.cu")) == find(whole, "src/m0.cu")
    monkeypatch.chdir(folder / "build")
    assert names(whole, find(whole, "net/m2.fatbin")) == ["build/net/m2.fatbin"]


def test_a_name_of_several_things_lists_them(whole: Graph) -> None:
    with pytest.raises(UsageError) as raised:
        find(whole, "scale_m0")
    listed = [line.strip() for line in raised.value.what.splitlines()[1:]]
    assert listed == [f"unit:scale_m0_k{number}(float const*, float*)" for number in range(1, 5)]
    assert [len(find(whole, name)) for name in listed] == [1, 1, 1, 1]
    with pytest.raises(UsageError, match="nothing in the graph is called scale_m9_k4") as none:
        find(whole, "scale_m9_k4")
    assert "did you mean scale_m" in str(none.value)
    with pytest.raises(UsageError, match="nothing in the graph"):
        find(whole, "common_0", module="net")


def test_one_kernel_for_several_architectures_is_no_question() -> None:
    nodes = [Node("unit", "k", f"unit:{arch}", arch=arch, digest=arch * 8) for arch in ("ab", "cd")]
    found = Graph(nodes=tuple(nodes))
    assert find(found, "k") == (0, 1)
    assert find(found, "k", arch="cd") == (1,)


def test_the_end_of_a_path_goes_before_parts_of_others() -> None:
    found = Graph(nodes=tuple(Node("header", name, name) for name in ("include/a.h", "include/a.hpp", "data.h")))
    assert find(found, "a.h") == (0,)


def test_shared_and_twins(whole: Graph) -> None:
    assert [node.name for node in shared(whole)] == ["common_0(float const*, float*)"]
    groups = twins(whole)
    assert [each.group for each in groups] == [1] * 8
    assert sorted(each.unit.name.partition("(")[0] for each in groups) == [f"scale_m{m}_k{k}" for m in range(4) for k in (1, 2)]
    assert len({each.object for each in groups}) == 8, "no object is shared"
    alone = replace(whole, nodes=tuple(replace(node, body="") if node.name.startswith("scale_m0") else node for node in whole.nodes))
    assert len(twins(alone)) == 6


def part(name: str, **fields: Any) -> Part:
    kernels = (PlannedKernel(name, name, "a.cu"),)
    given = {
        "digest": name * 8,
        "key": (("lowered-by", "llvm"),),
        "slice": "",
        "role": "unit",
        "source": "a.cu",
        "bytes": 1,
        "kernels": kernels,
    }
    return Part(**{**given, **fields})


def test_ways_to_link() -> None:
    """Objects, deferred PTX, PTX alone, a bundle; state, a kernel that another source is part of; a bypassed module and its child."""
    parts = (part("aa"), part("bb", joins=(Joined("b.cu", ()),)), part("cc", language="ptx", source="c.ptx", candidate="N=2"))
    state = part("dd", role="state", kernels=(), defines=("counter",))
    header = Header("/x/h.h", ours=False)
    objects = {"a" * 16: "1", "b" * 16: "2.dptx", "d" * 16: "3"}
    mixed = Half("sm_90", (*parts, state), "p/one/sm_90.cubin", objects, {"a.cu": (header,)}, "ptxas", "nvlink")
    bundled = Half("sm_90", (part("aa"),), "", {"a" * 16: "9"}, {})
    one = Module("one", submodules=("two",), link="image", halves=(mixed,))
    two = Module("two", bypass=True, submodules=("three",))
    three = Module("three", link="bundle", bundle="p/three.gpubundle", halves=(bundled,))
    found = graph((Program("p", "p", (one, three, two), {"ptxas": "13.5", "nvlink": "13.5"}),))
    edges = {(found.nodes[a].name, found.nodes[b].name) for a, b in found.edges}
    assert edges == {
        ("one", "p"),
        ("two", "one"),
        ("three", "two"),
        ("p/three.gpubundle", "three"),
        ("9", "p/three.gpubundle"),
        ("aa", "9"),
        ("p/one/sm_90.cubin", "one"),
        ("1", "p/one/sm_90.cubin"),
        ("2", "p/one/sm_90.cubin"),
        ("cc [N=2]", "p/one/sm_90.cubin"),
        ("3", "p/one/sm_90.cubin"),
        ("aa", "1"),
        ("bb", "2"),
        ("state of a.cu", "3"),
        ("a.cu", "aa"),
        ("a.cu", "bb"),
        ("b.cu", "bb"),
        ("c.ptx", "cc [N=2]"),
        ("a.cu", "state of a.cu"),
        ("/x/h.h", "a.cu"),
        ("ptxas 13.5", "1"),
        ("ptxas 13.5", "3"),
        ("nvlink 13.5", "p/one/sm_90.cubin"),
    }
    kinds = {node.name: node.kind for node in found.nodes}
    assert (kinds["2"], kinds["9"], kinds["state of a.cu"]) == ("deferred", "object", "state")
    assert [node.modules for node in found.nodes if node.name == "aa"] == [("p/one", "p/three")]
    text = list(tree(found))
    assert "  module two (bypassed)" in [line[2:] for line in text]
    assert any(line.strip() == f"unit cc [N=2] {'c' * 8} sm_90 (candidate: N=2; language: ptx)" for line in text)


def test_equal_graphs_give_equal_bytes_and_programs_order_none_of_them(whole: Graph, folder: Path) -> None:
    again = read(folder / ".gpu-store")
    assert {name: write(whole) for name, write in FORMATS.items()} == {name: write(again) for name, write in FORMATS.items()}
    one, two = (Program(name, name, (Module("m", halves=(Half("sm_90", (part("aa"),)),)),)) for name in "pq")
    assert graph((one, two)) == graph((two, one))


ODD = Graph(
    nodes=(
        Node("unit", 'op<"\\\\n">{|}\u00e9 & <b>', "unit:1", arch="sm_90", digest="12345678ab"),
        Node("source", "dir with space/\\new\nline.cu", "source:1"),
        Node("header", "\x01<html>", "header:1"),
    ),
    edges=((1, 0), (2, 1)),
)


def test_dot_quotes_whatever_is_in_a_name() -> None:
    text = FORMATS["dot"](ODD)
    labels = re.findall(r'n\d \[label="((?:[^"\\]|\\.)*)"\]', text)
    plain = ['op<"\\\\n">{|}\u00e9 & <b> 12345678 sm_90', "dir with space/\\new\\nline.cu", "\\x01<html>"]
    assert [re.sub(r"\\(.)", r"\1", label) for label in labels] == plain
    assert re.findall(r"(n\d) -> (n\d)", text) == [("n1", "n0"), ("n2", "n1")]


def test_graphml_is_read_by_others(whole: Graph, tmp_path: Path) -> None:
    space = {"g": "http://graphml.graphdrawing.org/xmlns"}
    root = ET.fromstring(FORMATS["graphml"](ODD))  # noqa: S314 - our own text
    keys = {key.get("id"): key.get("attr.name") for key in root.findall("g:key", space)}
    nodes = [{keys[data.get("key")]: data.text for data in node} for node in root.iterfind(".//g:node", space)]
    assert nodes[0]["name"] == ODD.nodes[0].name
    assert [node["name"] for node in nodes[1:]] == ["dir with space/\\new\\nline.cu", "\\x01<html>"]
    path = tmp_path / "whole.graphml"
    path.write_text(FORMATS["graphml"](whole), encoding="utf-8")
    (read_back,) = rustworkx.read_graphml(str(path))
    assert (read_back.num_nodes(), sorted(read_back.edge_list())) == (len(whole.nodes), list(whole.edges))


def test_json_holds_all(whole: Graph) -> None:
    data = json.loads(FORMATS["json"](whole))
    assert data["schema"] == "scons-gpu/graph/1"
    assert [tuple(edge) for edge in data["edges"]] == list(whole.edges)
    assert [node["id"] for node in data["nodes"]] == [node.id for node in whole.nodes]


def test_parts_of_the_graph(folder: Path) -> None:
    module = run(folder, "graph", "--module", "m2").stdout.splitlines()
    assert module[0] == "module m2"
    assert sum(line.strip().startswith("unit ") for line in module) == 5
    assert not any("m1" in line for line in module)
    root = run(folder, "graph", "--module", "net").stdout.splitlines()
    assert root == ["module net", "  module m0", "  module m1", "  module m2", "  module m3"]
    near = json.loads(run(folder, "graph", "--kernel", "scale_m1_k3", "--depth", "1", "--json").stdout)
    assert [node["kind"] for node in near["nodes"]] == ["object", "unit", "source"]
    assert run(folder, "graph", "--depth", "1").stdout.splitlines() == ["program build/net", "  module net"]
    assert "tool" not in run(folder, "graph").stdout
    assert "tool ptxas 13.5.37" in run(folder, "graph", "--all").stdout
    refused = run(folder, "graph", "--module", "m2", "--kernel", "common_0")
    assert (refused.exit_code, "two questions" in refused.stderr) == (2, True)


def test_what_the_commands_print(folder: Path, tmp_path: Path) -> None:
    inputs = run(folder, "inputs", "scale_m0_k1").stdout.splitlines()
    assert inputs[2].split() == ["source", "src/m0.cu", "build/net/m0"]
    assert inputs[-1] == "and 1 header outside the tree: --all tells of all"
    assert run(folder, "inputs", "scale_m0_k1", "--all").stdout.splitlines()[3].split() == ["header", "/usr/include/math.h"]
    assert "build/net/m3.fatbin" in run(folder, "users", "common_0", "--arch", ARCH).stdout
    assert run(folder, "users", "net.json").stdout == "nothing: program build/net stands at the end\n"
    assert len(run(folder, "path", "net.json", "src/m3.cu").stdout.splitlines()) == 2 + 8
    assert "may be 2 things:\n  program:build/net\n  module:net" in run(folder, "users", "net").stderr
    apart = run(folder, "path", "src/m0.cu", "src/m1.cu")
    assert (apart.exit_code, apart.stdout) == (1, "neither src/m0.cu nor src/m1.cu is made of the other\n")
    assert json.loads(run(folder, "shared", "--json").stdout)["kernels"][0]["symbols"] == ["_Z8common_0PKfPf"]
    assert len(run(folder, "twins").stdout.splitlines()) == 2 + 8
    done = run(folder, "graph", "--format", "dot", "-o", str(tmp_path / "g.dot"), "build/net.json")
    assert (done.output, (tmp_path / "g.dot").read_text().startswith("digraph scons_gpu {")) == ("", True)


def test_no_build_one_that_only_looked_and_one_that_was_killed(folder: Path, tmp_path: Path) -> None:
    store = tmp_path / "none"
    with pytest.raises(UsageError, match="no build was logged"):
        read(store)
    log = BuildLog(store / "log.jsonl", build="looked")
    log.write(type="start", argv=["-n"], looking=True, jobs=1, top=str(tmp_path))
    with pytest.raises(UsageError, match="no build was logged"):
        read(store)
    log = BuildLog(store / "log.jsonl", build="killed")
    log.write(type="start", argv=[], looking=False, jobs=1, top=str(folder))
    with pytest.raises(UsageError, match=r"build killed of .* planned no kernel"):
        read(store)
    log.write(type="action", stage="plan", name="m0", arch=ARCH, owners=["m0"], target=str(folder / f"build/net/m0/{ARCH}.plan.json"))
    found = read(store)
    assert found.notes == ("build killed was killed, or still runs: this is what it had planned",)
    assert len(names(found, range(len(found.nodes)), "unit")) == 17, "plans that it did not make again are there from before"
    there = read(store, manifests=[folder / "build/net.json"])
    assert (there.nodes, there.notes) == (found.nodes, ())


def test_files_that_are_gone_or_do_not_read(folder: Path, tmp_path: Path) -> None:
    place = copied(folder, tmp_path)
    manifest, store = place / "build/net.json", place / "none"
    (place / f"build/net/m1/{ARCH}.plan.json").unlink()
    (place / f"build/net/m2/{ARCH}.link.json").unlink()
    found = read(store, manifests=[manifest])
    assert len(found.notes) == 1
    assert "m1/sm_90.plan.json is not there: kernels of m1 for sm_90 are those of" in found.notes[0]
    assert Counter(node.kind for node in found.nodes)["unit"] == 17, "the manifest knows them"
    assert Counter(node.kind for node in found.nodes)["object"] == 17
    (place / f"build/net/m2/{ARCH}.link.json").write_text("{}")
    with pytest.raises(DamagedError, match="not what a link writes"):
        read(store, manifests=[manifest])
    (place / f"build/net/m2/{ARCH}.link.json").unlink()
    (place / f"build/net/m3/{ARCH}.plan.json").write_text('{"format": "scons-gpu/plan/0"}')
    with pytest.raises(DamagedError, match="format 'scons-gpu/plan/0' is not"):
        read(store, manifests=[manifest])
    manifest.write_text(manifest.read_text().replace("scons-gpu/manifest/1", "scons-gpu/manifest/2"))
    with pytest.raises(DamagedError, match=r"schema 'scons-gpu/manifest/2' is not"):
        read(store, manifests=[manifest])
    manifest.write_bytes(b"\xff\xfe")
    with pytest.raises(DamagedError, match=r"net\.json: not text"):
        read(store, manifests=[manifest])
    with pytest.raises(UsageError, match="there is no manifest"):
        read(store, manifests=[tmp_path / "other.json"])


def test_a_header_whose_path_is_no_text_is_shown_escaped(folder: Path, tmp_path: Path) -> None:
    place = copied(folder, tmp_path)
    for file in (place / "build/net/m0").glob("*.d"):
        file.write_bytes(b"/a/\xff.h\n")
    found = read(place / "none", manifests=[place / "build/net.json"])
    assert "/a/\\xff.h" in [node.name for node in found.nodes if node.kind == "header"]


def test_an_earlier_build_is_told_from_the_copies_of_its_plans(folder: Path, tmp_path: Path) -> None:
    place = tmp_path / "two"
    lay_out(place, Built(modules=1, kernels=2, same=0))
    plan = place / f"build/net/m0/{ARCH}.plan.json"
    plan.write_text(plan.read_text().replace("scale_m0_k1", "other_m0_k1"))
    store = place / ".gpu-store"
    then, now = read(store, build="build-0"), read(store)
    assert names(then, range(len(then.nodes)), "unit") == ["scale_m0_k0(float const*, float*)", "scale_m0_k1(float const*, float*)"]
    assert names(now, range(len(now.nodes)), "unit") == ["other_m0_k1(float const*, float*)", "scale_m0_k0(float const*, float*)"]
    (store / "log.jsonl").rename(rotated(store / "log.jsonl"))
    assert read(store) == now, "a log that was put aside is read too"
    with pytest.raises(UsageError, match="there is no build build-7"):
        read(store, build="build-7")
    assert read(folder / ".gpu-store", build="build-1").nodes == read(folder / ".gpu-store").nodes
