"""The steps of a build by hand, as logs quote them: source, split, plan, lower, assemble, link, pack."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scons_gpu.cli import tools as given
from scons_gpu.errors import GpuError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from scons_gpu.assemble.choose import Need
    from scons_gpu.cli.program import Place
    from scons_gpu.link.library import Library
    from scons_gpu.toolchain.arch import Target
    from scons_gpu.toolchain.tools import Toolchain

__all__ = ["COMMANDS"]

_existing = click.Path(exists=True, dir_okay=False)


@click.command()
@click.argument("path", metavar="IN", type=_existing)
@given.arch()
@given.output
@click.option("-I", "cpppath", multiple=True, help="A folder with headers.", metavar="DIR")
@click.option("-D", "defines", multiple=True, help="A define.", metavar="NAME[=VALUE]")
@click.option("--flag", "flags", multiple=True, help="A further option for clang.", metavar="FLAG")
@click.option("--nvcc-flag", "nvcc_flags", multiple=True, help="A further option for nvcc or NVRTC.", metavar="FLAG")
@click.option("--frontend", type=click.Choice(["auto", "clang", "nvcc", "nvrtc"]), default="auto", help="What compiles a .cu.")
@click.option("--fast-math", is_flag=True, help="As nvcc's -use_fast_math.")
@click.option("--ftz", is_flag=True, help="Flush single precision denormals.")
@click.option("--lineinfo", is_flag=True, help="Keep line tables.")
@click.option("--debug", is_flag=True, help="Keep debug information.")
@click.option("--relocatable", default="", help="Tells the source from others whose device code is linked with its own.", metavar="WORD")
@click.pass_obj
def source(
    place: Place,
    /,
    *,
    path: str,
    arch: str,
    output: str,
    frontend: str,
    **options: Any,  # noqa: ANN401 - the front end's options
) -> None:
    """A source becomes what is split: LLVM IR (of .cu, .ll, .bc) or PTX (of .ptx), for one architecture."""
    wanted = given.target(arch)
    if not path.endswith(".cu"):
        with _worker() as run:
            given.say(run("source", path=_absolute(path), arch=wanted.name, output=_absolute(output))["output"])
        return
    import os

    from scons_gpu.source import clang, nvcc, nvrtc
    from scons_gpu.source.options import ClangOptions
    from scons_gpu.toolchain import frontends

    found = given.toolchain(place.store)
    front = frontends.choose(found, wanted=frontend, environ=os.environ, facts=place.store / "tools")
    made: dict[str, Any] = {"target": wanted, "options": ClangOptions(**options), "output": Path(output).absolute(), "top": str(Path.cwd())}
    if front.name == "clang":
        compiled = clang.compile_cuda(front.tool, path, **made, headers=found.headers)
    elif front.name == "nvcc":
        compiled = nvcc.compile_cuda(front.tool, path, **made)
    else:
        compiled = nvrtc.compile_cuda(front.tool.path, path, **made)
    given.say("\n".join(text for text in (front.said, compiled.output) if text))


@click.command()
@click.argument("path", metavar="IR", type=_existing)
@given.arch()
@given.output
@click.option("--form", type=click.Choice(["apart", "closed"]), default="apart", show_default=True, help="closed: every unit a program.")
@click.option("--source", help="What messages call the source; IR by default.", metavar="NAME")
@click.option("--lineinfo", is_flag=True, help="Keep the line information of PTX.")
@click.option("--exports", is_flag=True, help="The module has other sources, which may need what this one defines.")
@click.pass_obj
def split(  # noqa: PLR0913 - an option each
    place: Place, /, *, path: str, arch: str, output: str, form: str, source: str | None, lineinfo: bool, exports: bool
) -> None:
    """IR or PTX becomes an index; the units' slices go to the store."""
    wanted = given.target(arch)
    with _worker() as run:
        answer = run(
            "split",
            path=_absolute(path),
            source=source or path,
            arch=wanted.name,
            form=form,
            roots=[str(place.store)],
            output=_absolute(output),
            lines=lineinfo,
            exports=exports,
        )
    given.say(answer["output"])


@click.command()
@click.argument("indexes", metavar="INDEX...", nargs=-1, required=True, type=_existing)
@given.arch()
@given.output
@click.option("--module", default="", help="The module's name; that of the plan's folder by default.")
@click.option("--link", type=click.Choice(["image", "merge", "bundle", "whole"]), default="image", show_default=True, help="Link mode.")
@click.option("--library", "libraries", multiple=True, type=_existing, help="A file with device code that is linked too.", metavar="FILE")
@given.lowering
@click.pass_obj
def plan(  # noqa: PLR0913 - an option each
    place: Place,
    /,
    *,
    indexes: tuple[str, ...],
    arch: str,
    output: str,
    module: str,
    link: str,
    libraries: tuple[str, ...],
    **options: Any,  # noqa: ANN401 - how units will be lowered
) -> None:
    """The indexes of a module's sources become its plan."""
    import scons_gpu.plan as plans
    from scons_gpu.link.library import defined
    from scons_gpu.lower.choose import library
    from scons_gpu.lower.options import key as lower_key
    from scons_gpu.split.index import from_text
    from scons_gpu.store.files import write_atomic

    wanted, found = given.target(arch), given.toolchain(place.store)
    lowered = given.lower_options(wanted, found, store=place.store, **options)
    libdevice_identity, nvvm = found.libdevice.identity if found.libdevice else "", library(found, lowered)

    def key(slice_name: str, *, libdevice: bool, renames: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
        identity = libdevice_identity if libdevice else ""
        return lower_key(slice=slice_name, target=wanted, options=lowered, llvm=found.llvm, nvvm=nvvm, libdevice=identity, renames=renames)

    read = [from_text(given.read(path), path=path) for path in indexes]
    for path, index in zip(indexes, read, strict=True):
        if index.arch != wanted.name:
            msg = f"{path}: was made for {index.arch}, and the plan is for {wanted.name}"
            raise UsageError(msg, hint="split the IR of that architecture")
    name = module or Path(output).absolute().parent.name
    besides = defined([each for _, each in _libraries(libraries, found)])
    made = plans.plan(read, module=name, arch=wanted.name, link=link, key=key, libraries=besides)
    for part in made.parts:
        if error := plans.refusal(part):
            raise error.at(module=name, source=part.source, arch=wanted.name)
    write_atomic(Path(output).absolute(), plans.to_text(made))
    given.say("\n".join(f"{where}: {text}" for where, text in made.notes))


@click.command()
@click.argument("name", metavar="SLICE")
@given.arch()
@given.output
@given.lowering
@click.option("--rename", "renames", multiple=True, help="A symbol of the slice, and its name in the image.", metavar="OLD=NEW")
@click.option("--join", "joins", multiple=True, help="What joins it of one source, as a plan has it.", metavar="JSON")
@click.pass_obj
def lower(  # noqa: PLR0913 - an option each
    place: Place,
    /,
    *,
    name: str,
    arch: str,
    output: str,
    renames: tuple[str, ...],
    joins: tuple[str, ...],
    **options: Any,  # noqa: ANN401 - how to lower
) -> None:
    """A slice, by path or by its name in the store, becomes PTX."""
    from dataclasses import asdict

    from scons_gpu.lower.choose import library

    wanted, found = given.target(arch), given.toolchain(place.store)
    lowered = given.lower_options(wanted, found, store=place.store, **options)
    nvvm = library(found, lowered)
    where = {"file": _absolute(name)} if Path(name).is_file() else {"slice": name, "roots": [str(place.store)]}
    with _worker() as run:
        answer = run(
            "lower",
            **where,
            arch=wanted.name,
            options=asdict(lowered),
            nvvm=nvvm.path if nvvm else "",
            libdevice=found.libdevice.path if found.libdevice else "",
            searched=found.where("libdevice"),
            renames=[_pair(text) for text in renames],
            joins=[_join(text) for text in joins],
            output=_absolute(output),
        )
    given.say(answer["output"])


@click.command()
@click.argument("path", metavar="PTX", type=_existing)
@given.arch(required=False)
@given.output
@click.option("--whole", is_flag=True, help="A program of its own, not a relocatable object.")
@click.option("--anonymous", is_flag=True, help="Take out the kernel's own name first, as kernels of one body share an object.")
@click.option("--complete", is_flag=True, help="Give variables of other objects a place first, as a candidate is measured.")
@click.option("--defer", "unit", help="Nothing is assembled: the PTX of that unit becomes a file that a link finishes.", metavar="UNIT")
@click.option("--verbose", is_flag=True, help="Show the assembler's report of resources.")
@given.assembling
@click.pass_obj
def assemble(  # noqa: PLR0913 - an option each
    place: Place,
    /,
    *,
    path: str,
    arch: str | None,
    output: str,
    whole: bool,
    anonymous: bool,
    complete: bool,
    unit: str | None,
    provider: str,
    **options: Any,  # noqa: ANN401 - how to assemble
) -> None:
    """PTX becomes an object.

    Without --arch, for the architecture that the PTX names.
    """
    from scons_gpu.assemble.choose import choose
    from scons_gpu.store.files import write_atomic

    ptx = given.read(path)
    if anonymous:
        from scons_gpu.link import twins

        ptx = twins.anonymous(ptx)
    if complete:
        from scons_gpu.link import measured

        ptx = measured.complete(ptx)
    wanted = given.target(arch) if arch else _target_of(ptx, path)
    need: Need = "compile" if whole else "relocatable"
    defer = unit is not None
    needs: list[Need] = [need, "link"] if defer else [need]
    found = given.toolchain(place.store)
    chosen = choose(found, wanted=provider, needs=needs, facts=place.store / "tools", targets=[wanted], always_defer=defer).provider
    work = chosen.compile if whole else chosen.compile_relocatable
    try:
        made = work(ptx, target=wanted, options=given.assemble_options(**options, unit=unit or ""))
    except GpuError as error:
        raise error.at(source=path, arch=wanted.name) from None
    write_atomic(Path(output).absolute(), made.data)
    given.say(made.output)


@click.command()
@click.argument("plans", metavar="PLAN...", nargs=-1, required=True, type=_existing)
@given.output
@click.option("--as-ptx", is_flag=True, help="The module's PTX, for a real architecture too.")
@click.option("--whole", is_flag=True, help="Assembled in one piece; what a plan of GPU_LINK=whole says by itself.")
@click.option("--defer", is_flag=True, help="The units are deferred PTX, as with GPU_DEFER=always.")
@click.option("--share-twins", is_flag=True, help="The bundle's kernels of one body share an object.")
@click.option("--library", "libraries", multiple=True, type=_existing, help="A file with device code to link too.", metavar="FILE")
@given.assembling
@click.pass_obj
def link(  # noqa: PLR0913 - an option each
    place: Place,
    /,
    *,
    plans: tuple[str, ...],
    output: str,
    as_ptx: bool,
    whole: bool,
    defer: bool,
    share_twins: bool,
    libraries: tuple[str, ...],
    provider: str,
    **options: Any,  # noqa: ANN401 - how the objects were assembled
) -> None:
    """A plan's objects become the module's image; those of several, its bundle.

    All of them must be in the store. The options must be those that the objects were assembled with: they are part of the objects' names.
    """
    from scons_gpu.cli.linking import Linker
    from scons_gpu.plan import from_text
    from scons_gpu.store.files import write_atomic

    read = [from_text(given.read(path), path=path) for path in plans]
    found, wanted = given.toolchain(place.store), given.assemble_options(**options)
    linker = Linker(
        store=place.store,
        tools=found,
        provider=provider,
        options=wanted,
        as_ptx=as_ptx,
        defer=defer,
        share_twins=share_twins,
        besides=_libraries(libraries, found),
    )
    data = linker.bundle(read, Path(output)) if read[0].link == "bundle" else linker.image(_only(read), whole=whole)
    write_atomic(Path(output).absolute(), data)
    given.say(linker.output)


def _libraries(files: Sequence[str], found: Toolchain) -> list[tuple[Path, Library]]:
    """Files that are linked besides a module's units, with what they hold."""
    from scons_gpu.link.library import read

    held = [(Path(path), read(Path(path), name=Path(path).name, cuobjdump=found.cuobjdump)) for path in files]
    return [(path, library) for path, library in held if library.members]


@click.command()
@click.argument("images", metavar="IMAGE...", nargs=-1, required=True, type=_existing)
@given.output
@click.pass_obj
def pack(place: Place, /, images: tuple[str, ...], output: str) -> None:
    """Images, one per architecture, become a fatbin.

    An image is a .cubin or PTX. It is for the architecture that it is called by (sm_90.cubin, compute_90.ptx), else for the one that
    it names itself.
    """
    from scons_gpu.link.fatbin import pack as packed
    from scons_gpu.store.files import write_atomic

    paths = [(_target_of_image(Path(path)), Path(path)) for path in images]
    write_atomic(Path(output).absolute(), packed(paths, fatbinary=given.toolchain(place.store).fatbinary))


COMMANDS = (source, split, plan, lower, assemble, link, pack)


@contextlib.contextmanager
def _worker() -> Iterator[Any]:
    """Has tasks done by a worker: LLVM may take its process along."""
    from scons_gpu.workers.pool import Pool

    pool = Pool()
    try:
        yield pool.run
    finally:
        pool.close()


def _absolute(path: str) -> str:
    return str(Path(path).absolute())


def _pair(text: str) -> list[str]:
    old, equals, new = text.partition("=")
    if not (old and equals and new):
        msg = f"--rename {text}: OLD=NEW is wanted"
        raise UsageError(msg)
    return [old, new]


def _join(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
        return {name: found[name] for name in ("source", "slices", "renames", "own", "dropped", "shows")}
    except (ValueError, KeyError, TypeError):
        msg = f"--join {text}: an entry of a plan's joins is wanted"
        raise UsageError(msg) from None


def _only(plans: list[Any]) -> Any:  # noqa: ANN401 - a plan
    if len(plans) != 1:
        msg = f"an image is made of one plan, and {len(plans)} were named"
        raise UsageError(msg, hint="link each architecture's plan, then pack the images")
    return plans[0]


def _target_of(ptx: str, path: str) -> Target:
    from scons_gpu.source.ptx_reader import target_named

    named = target_named(ptx)
    if not named:
        msg = f"{path}: names no architecture"
        raise UsageError(msg, hint="give one with --arch")
    return given.target(named)


def _target_of_image(path: Path) -> Target:
    from scons_gpu.link.fatbin import target_of

    with contextlib.suppress(UsageError):
        return given.target(path.stem)
    return target_of(path)
