"""Commands on the graph of what was built: graph, inputs, users, path, shared, twins."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scons_gpu.cli import tools as given
from scons_gpu.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from scons_gpu.cli.program import Place
    from scons_gpu.inspect.graph import Graph
    from scons_gpu.inspect.graph_walk import Walk

__all__ = ["COMMANDS"]

_path = click.Path(dir_okay=False)
_manifests = click.argument("manifests", nargs=-1, type=_path, metavar="[MANIFEST]...")
_named = click.option("--manifest", "manifests", multiple=True, type=_path, help="Of these programs.", metavar="MANIFEST")
_arch = click.option("--arch", default="", help="Of NAME, this architecture alone.", metavar="ARCH")
_module = click.option("--module", default="", help="Of NAME, what this module takes alone.", metavar="MODULE")
_everything = click.option("--all", "everything", is_flag=True, help="With headers outside the tree; JSON always has them.")


@click.command()
@_manifests
@click.option("--format", "form", type=click.Choice(["text", "dot", "json", "graphml"]), default="text", show_default=True, help="How.")
@click.option("--module", default="", help="This module, with what it is made of.", metavar="NAME")
@click.option("--kernel", default="", help="This kernel, with what it is made of and what is made of it.", metavar="NAME")
@click.option("--depth", type=click.IntRange(0), help="At most so many steps from there, or from the programs.", metavar="N")
@click.option("--all", "everything", is_flag=True, help="With tools, and headers outside the tree.")
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="A file instead of the screen.", metavar="FILE")
@given.as_json
@click.pass_obj
def graph(place: Place, /, manifests: tuple[str, ...], form: str, output: str | None, as_json: bool, **part: Any) -> None:  # noqa: ANN401 - click's
    """The graph of what was built: programs, modules, images, objects, units, sources, headers.

    Of the programs of the last build, or of these MANIFESTs. NAMEs are as `scons-gpu inputs` takes them.
    """
    from scons_gpu.inspect.graph_formats import FORMATS
    from scons_gpu.store.files import write_atomic

    found = _part(_read(place, manifests), **part)
    text = FORMATS["json" if as_json else form](found)
    if output:
        write_atomic(Path(output), text.encode())
    else:
        click.echo(text, nl=False)


def _part(whole: Graph, *, module: str, kernel: str, depth: int | None, everything: bool) -> Graph:
    """The part that was asked for."""
    from scons_gpu.inspect import graph_walk as walks
    from scons_gpu.inspect.graph_find import find

    kept = {place for place, node in enumerate(whole.nodes) if everything or node.ours}
    starts = [place for place, node in enumerate(whole.nodes) if node.kind == "program"]
    if module and kernel:
        msg = "--module and --kernel are two questions"
        raise UsageError(msg, hint="ask for one; a kernel of one module alone: the unit's digest")
    if module:
        starts = list(find(whole, module, kinds=["module"]))
        kept &= walks.only_of_module(whole, starts)
    if kernel:
        starts = list(find(whole, kernel, kinds=["unit"]))
        kept &= walks.only_of_kernel(whole, starts)
    if depth is not None:
        kept &= walks.Walk(whole).near(starts, depth, both=bool(kernel))
    return whole.only(kept)


@click.command()
@click.argument("name")
@_named
@_arch
@_module
@_everything
@given.as_json
@click.pass_obj
def inputs(place: Place, /, name: str, manifests: tuple[str, ...], everything: bool, as_json: bool, **narrowed: str) -> None:
    """What something is made of, down to sources, headers and tools.

    NAME is a path, a module, a kernel's symbol or readable name or a part of it that nothing else has in its name, the start of a
    digest, or one of them behind its kind: module:ops.
    """
    whole = _read(place, manifests)
    starts = _found(whole, name, **narrowed)
    _show(whole, sorted(_walk(whole).inputs(starts)), of=starts, as_json=as_json, everything=everything)


@click.command()
@click.argument("name")
@_named
@_arch
@_module
@_everything
@given.as_json
@click.pass_obj
def users(place: Place, /, name: str, manifests: tuple[str, ...], everything: bool, as_json: bool, **narrowed: str) -> None:
    """What is made of something, up to the programs. NAME is as for inputs."""
    whole = _read(place, manifests)
    starts = _found(whole, name, **narrowed)
    _show(whole, sorted(_walk(whole).users(starts)), of=starts, as_json=as_json, everything=everything)


def _walk(whole: Graph) -> Walk:
    from scons_gpu.inspect.graph_walk import Walk

    return Walk(whole)


def _found(whole: Graph, name: str, **narrowed: str) -> tuple[int, ...]:
    from scons_gpu.inspect.graph_find import find

    return find(whole, name, **narrowed)


@click.command()
@click.argument("one")
@click.argument("other")
@_named
@given.as_json
@click.pass_context
def path(ctx: click.Context, one: str, other: str, manifests: tuple[str, ...], as_json: bool) -> None:
    """How two things hang together: the shortest way from one to what is made of it. Exit code 1 where there is none.

    ONE and OTHER are as NAME for inputs; which of them is made of the other does not matter.
    """
    whole = _read(ctx.obj, manifests)
    walk = _walk(whole)
    ends = _found(whole, one), _found(whole, other)
    way = walk.path(*ends) or walk.path(*reversed(ends))
    if not way and not as_json:
        click.echo(f"neither {one} nor {other} is made of the other")
    else:
        _show(whole, way, of=[*ends[0], *ends[1]], as_json=as_json)
    if not way:
        ctx.exit(1)


@click.command()
@_manifests
@given.as_json
@click.pass_obj
def shared(place: Place, manifests: tuple[str, ...], as_json: bool) -> None:
    """Kernels that several modules have in common, compiled once: with all their owners."""
    from scons_gpu.inspect import graph_shared as found

    units = found.shared(_read(place, manifests))
    _table(
        found.SHARED_COLUMNS, found.shared_rows(units), found.shared_to_json(units), as_json=as_json, none="no two modules share a kernel"
    )


@click.command()
@_manifests
@given.as_json
@click.pass_obj
def twins(place: Place, manifests: tuple[str, ...], as_json: bool) -> None:
    """Kernels that differ in nothing but names, group by group."""
    from scons_gpu.inspect import graph_shared as found

    pairs = found.twins(_read(place, manifests))
    _table(found.TWIN_COLUMNS, found.twin_rows(pairs), found.twins_to_json(pairs), as_json=as_json, none="no kernel has a twin")


def _read(place: Place, manifests: Iterable[str]) -> Graph:
    """The graph, and on stderr what there is to know of it."""
    from scons_gpu.inspect.graph import read

    gc.disable()  # all that is read is kept until the end: looking for what is not takes a third of the time
    found = read(place.store, manifests=tuple(map(Path, manifests)), build=place.build)
    for note in found.notes:
        click.echo(f"note: {note}", err=True)
    return found


def _show(whole: Graph, places: Iterable[int], *, of: Sequence[int], as_json: bool, everything: bool = True) -> None:
    from scons_gpu.inspect.graph_formats import node_json

    nodes = [whole.nodes[place] for place in places]
    shown = [node for node in nodes if everything or node.ours or node.kind != "header"]
    rows = [(node.kind, node.name, node.arch, node.digest[:12], ", ".join(node.modules)) for node in shown]
    asked = [whole.nodes[place] for place in of]
    data = {"schema": "scons-gpu/nodes/1", "of": [node.id for node in asked], "nodes": [node_json(node) for node in nodes]}
    none = f"nothing: {asked[0].kind} {asked[0].name} stands at the end"
    _table(("kind", "name", "arch", "digest", "modules"), rows, data, as_json=as_json, none=none)
    if len(shown) < len(nodes) and not as_json:
        hidden = len(nodes) - len(shown)
        click.echo(f"and {hidden} header{'s' if hidden > 1 else ''} outside the tree: --all tells of all")


def _table(columns: Sequence[str], rows: Sequence[Any], data: dict[str, Any], *, as_json: bool, none: str) -> None:
    if as_json:
        click.echo(json.dumps(data, indent=1, sort_keys=True, ensure_ascii=False))
    elif rows:
        _printed(columns, rows)
    else:
        click.echo(none)


def _printed(columns: Sequence[str], rows: Sequence[Any]) -> None:
    from scons_gpu.inspect.tables import show

    show(columns, rows)


COMMANDS: tuple[click.Command, ...] = (graph, inputs, users, path, shared, twins)
