"""What a user declares: modules, their sources, and the tree they form. Nothing here builds."""

from __future__ import annotations

import hashlib
import os
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scons_gpu.errors import UsageError
from scons_gpu.scons import settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from scons_gpu.scons.candidates import Candidates
    from scons_gpu.scons.session import Session
    from scons_gpu.scons.settings import Settings
    from scons_gpu.source.options import ClangOptions

__all__ = ["GpuSource", "Module", "Source", "declare_module", "declare_source", "helper_folder", "reach"]

SUFFIXES = (".cu", ".ll", ".bc", ".ptx")


@dataclass(frozen=True)
class GpuSource:
    """One source with front-end options of its own, as `env.GpuSource` gives it."""

    path: Any
    overrides: tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Source:
    """One source of a module."""

    node: Any
    name: str
    """Path below the top, for messages and the manifest; never part of a digest."""
    stem: str
    """What its files are called, before the architecture."""
    variant: str
    """6 hex digits of the options that are its own; empty where it has none."""
    options: ClangOptions
    overrides: tuple[tuple[str, Any], ...] = field(default=(), compare=False)
    """What `env.GpuSource` was given for it."""

    def file(self, arch: str, suffix: str) -> str:
        """What one of its files is called: `k.cu.sm_90.ll`, or `k.cu.sm_90.1f0a7c.ll` where it has options of its own."""
        return ".".join(part for part in (self.stem, arch, self.variant, suffix) if part)


@dataclass(frozen=True, eq=False)
class Module:
    """A named set of sources with submodules, as `env.GpuModule` gives it."""

    name: str
    sources: tuple[Source, ...]
    submodules: tuple[Module | str, ...]
    bypass: bool
    settings: Settings
    place: str
    """file:line of the declaration."""
    env: Any = field(repr=False)
    candidates: tuple[Candidates, ...] = ()
    """Kernels that are compiled in several ways, of which one is taken."""
    helpers: tuple[Module, ...] = ()
    """Modules with kernels that a candidate may ask for."""

    @property
    def submodule_names(self) -> tuple[str, ...]:
        """As declared."""
        return tuple(item if isinstance(item, str) else item.name for item in self.submodules)


def declare_source(env: Any, path: Any, **overrides: Any) -> GpuSource:
    """A source with front-end options of its own. Raises UsageError for a variable that no front end reads."""
    for name in overrides:
        if name not in settings.PER_SOURCE:
            msg = f"GpuSource({path}) at {_place(env)}: {name} cannot be set for one source"
            raise UsageError(msg, hint=f"a source takes {', '.join(settings.PER_SOURCE)}; set others for its module")
    for flag in settings.nvcc(env, overrides.get("GPU_NVCCFLAGS")).settings:
        if flag.name in settings.VARIABLES and flag.name not in (
            *settings.PER_SOURCE,
            "GPU_HOSTFLAGS",
        ):  # no harm where there is no host's code
            msg = f"GpuSource({path}) at {_place(env)}: {flag.flag} of GPU_NVCCFLAGS is {flag.name}, which cannot be set for one source"
            raise UsageError(msg, hint="set it for its module")
    return GpuSource(env.File(path), tuple(sorted(overrides.items(), key=lambda item: item[0])))


def declare_module(  # noqa: PLR0913 - what a module is
    env: Any,
    session: Session,
    name: str,
    sources: Sequence[Any],
    *,
    submodules: Sequence[Module | str] = (),
    bypass: bool = False,
    candidates: Any = None,
    helpers: Any = (),
    **overrides: Any,
) -> Module:
    """A module. Raises UsageError for what cannot be one."""
    place = _place(env)
    if not name or name in (".", "..") or "/" in name or name != name.strip():
        msg = f"GpuModule at {place}: {name!r} cannot be a module's name"
        raise UsageError(msg, hint="a name becomes a file name: use letters, digits, '.', '-' and '_'")
    below = env.Flatten([submodules])
    for item in below:
        if not isinstance(item, (str, Module)):
            msg = f"module {name} at {place}: {_shortly(item)} is no module"
            raise UsageError(msg, hint="a submodule is what env.GpuModule gives, or its name")
    found = _sources(env, session.arguments, name, sources, overrides)
    for sentence in (*settings.misspelt(env), *_remarks(env, session.arguments, found, overrides)):
        session.warn(sentence)
    own = settings.read(env, session.arguments, overrides, supported=session.supported)
    return Module(
        name=name,
        sources=found,
        submodules=tuple(below),
        bypass=bool(bypass),
        settings=own,
        place=place,
        env=env,
        candidates=_candidates(env, session, candidates, module=name, sources=found, own=own, overrides=overrides) if candidates else (),
        helpers=_helpers(env.Flatten([helpers]), module=name, place=place),
    )


def _remarks(env: Any, arguments: Mapping[str, Any], sources: Sequence[Source], overrides: Mapping[str, Any]) -> list[str]:
    """What is to be told of nvcc's flags: the module's, and those of sources that have some of their own."""
    own = [dict(source.overrides) for source in sources if any(name == "GPU_NVCCFLAGS" for name, _ in source.overrides)]
    return [sentence for each in ({}, *own) for sentence in settings.remarks(env, arguments, {**overrides, **each})]


def _candidates(  # noqa: PLR0913 - what a module is
    env: Any, session: Session, given: Any, *, module: str, sources: Sequence[Source], own: Settings, overrides: Mapping[str, Any]
) -> tuple[Candidates, ...]:
    from scons_gpu.scons import candidates  # noqa: PLC0415 - most modules have none

    def resettle(changed: Mapping[str, Any]) -> Settings:
        return settings.read(env, session.arguments, {**overrides, **changed}, supported=session.supported)

    def refront(source: Source, changed: Mapping[str, Any]) -> ClangOptions:
        return settings.front_end(env, session.arguments, overrides, {**dict(source.overrides), **changed})

    return candidates.read(given, module=module, sources=sources, own=own, resettle=resettle, refront=refront)


def _helpers(given: Sequence[Any], *, module: str, place: str) -> tuple[Module, ...]:
    for item in given:
        if not isinstance(item, Module):
            msg = f"module {module} at {place}: {_shortly(item)} is no module of helper kernels"
            raise UsageError(msg, hint="a helper is what env.GpuModule gives")
        if item.helpers or item.candidates:
            msg = f"module {module} at {place}: its helper {item.name} has {'helpers' if item.helpers else 'candidates'} of its own"
            raise UsageError(msg, hint="kernels that are asked for ask for no others: there is one round")
    return tuple(given)


def _sources(env: Any, arguments: Mapping[str, Any], module: str, items: Any, overrides: Mapping[str, Any]) -> tuple[Source, ...]:
    given = [item if isinstance(item, GpuSource) else GpuSource(item, ()) for item in env.Flatten([items])]
    files = [(node, source) for source in given for node in env.arg2nodes(source.path, env.fs.File)]
    names = [name_below_top(node, env) for node, _ in files]
    same = Counter(Path(name).name for name in set(names))  # one file twice is told apart by its options
    sources: list[Source] = []
    stems: set[tuple[str, str]] = set()
    for (node, source), name in zip(files, names, strict=True):
        base = Path(name).name
        if Path(base).suffix not in SUFFIXES:
            msg = f"{name} of module {module} is no source that can be read"
            raise UsageError(msg, hint=f"sources end in {', '.join(SUFFIXES)}")
        options = settings.front_end(env, arguments, overrides, dict(source.overrides))
        # Of what the options came to: an override may be a node or a dictionary, whose own text differs from run to run.
        own = [(variable, _own(options, variable)) for variable, _ in source.overrides]
        read = Source(
            node=node,
            name=name,
            stem=f"{base}.{_hex(name)}" if same[base] > 1 else base,
            variant=_hex(repr(own)) if own else "",
            options=options,
            overrides=source.overrides,
        )
        if (read.stem, read.variant) in stems:
            msg = f"{name} stands twice in module {module}"
            raise UsageError(msg, hint="name a source once, or give the second one other options with env.GpuSource")
        stems.add((read.stem, read.variant))
        sources.append(read)
    return tuple(sources)


def _own(options: ClangOptions, variable: str) -> Any:
    """What a variable of one source came to; GPU_NVCCFLAGS may come to anything."""
    return options if variable == "GPU_NVCCFLAGS" else getattr(options, settings.PER_SOURCE[variable])


def name_below_top(node: Any, env: Any) -> str:
    """Where the source lies, from the top of the tree: the same in every checkout."""
    path = node.srcnode().get_abspath() if hasattr(node, "srcnode") else str(node)
    return Path(os.path.relpath(path, env.fs.Top.get_abspath())).as_posix()


def _hex(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:6]


_OURS = str(Path(__file__).resolve().parents[1])


def _place(env: Any) -> str:
    """file:line of the SConscript that is being read, from the top: SCons reads each in its own folder."""
    frame = sys._getframe(1)  # noqa: SLF001 - what `traceback` would do, without reading every line
    while frame.f_back and (frame.f_code.co_filename.startswith(_OURS) or f"{os.sep}SCons{os.sep}" in frame.f_code.co_filename):
        frame = frame.f_back
    return f"{os.path.relpath(frame.f_code.co_filename, env.fs.Top.get_abspath())}:{frame.f_lineno}"


def reach(env: Any, root: object, declared: Mapping[str, Sequence[Module]]) -> tuple[Module, ...]:
    """Every module of a program once, submodules before their parents, in the order of declaration.

    Raises UsageError for a root that is no module, for a cycle, showing it, and for two modules of one name, naming both places.
    """
    if not isinstance(root, Module):
        msg = f"GpuProgram at {_place(env)}: {_shortly(root)} is no module"
        raise UsageError(msg, hint="a program has one root: what env.GpuModule gives, with others as its submodules")
    order: dict[str, Module] = {}
    for module in _walk(root, declared, ()):
        other = order.setdefault(module.name, module)
        if other is not module:
            msg = f"module {module.name} is declared at {other.place} and at {module.place}"
            raise UsageError(msg, hint="names are unique in a program: rename one")
    _check_helpers(order)
    return tuple(order.values())


def _check_helpers(modules: Mapping[str, Module]) -> None:
    """Helpers have their folders beside the program's modules, so their names are of the same kind."""
    known = dict(modules)
    for owner in modules.values():
        for helper in owner.helpers:
            for name in (helper.name, helper_folder(owner, helper)):
                other = known.setdefault(name, helper)
                if other is not helper:
                    raise _same_folder(other, helper, name)


def _same_folder(other: Module, helper: Module, name: str) -> UsageError:
    msg = f"module {other.name} is declared at {other.place} and, as a helper, at {helper.place}"
    if other.name != helper.name:
        msg = f"module {other.name} at {other.place} and the helper {helper.name} at {helper.place} both keep their plans in {name}"
    return UsageError(msg, hint="names are unique in a program, those of helpers too: rename one")


def helper_folder(owner: Module, helper: Module) -> str:
    """What the folder of a helper's plans is called: as the helper, and what it takes from its owner where its own settings differ."""
    given = ((owner.settings.link, helper.settings.link), (owner.settings.provider, helper.settings.provider))
    return ".".join((helper.name, *(value for value, own in given if value != own)))


def _shortly(thing: object) -> str:
    return repr(thing) if isinstance(thing, str) else f"a {type(thing).__name__}"


def _walk(root: Module, declared: Mapping[str, Sequence[Module]], path: tuple[Module, ...]) -> Iterator[Module]:
    """Depth first without recursion: chains of modules can be longer than Python's stack."""
    done: set[int] = set()
    stack: list[tuple[Module, tuple[Module, ...], bool]] = [(root, path, False)]
    while stack:
        module, above, leaving = stack.pop()
        if leaving:
            done.add(id(module))
            yield module
            continue
        if any(parent is module for parent in above):
            cycle = [*above[next(k for k, parent in enumerate(above) if parent is module) :], module]
            msg = f"modules form a cycle: {' -> '.join(step.name for step in cycle)}"
            raise UsageError(
                msg, hint="a module cannot reach itself; " + "; ".join(f"{step.name} is at {step.place}" for step in cycle[:-1])
            )
        if id(module) in done:
            continue
        stack.append((module, above, True))
        inner = (*above, module)
        stack += [(child, inner, False) for child in reversed([_resolve(item, module, declared) for item in module.submodules])]


def _resolve(item: Module | str, parent: Module, declared: Mapping[str, Sequence[Module]]) -> Module:
    if isinstance(item, Module):
        return item
    found = declared.get(item, ())
    if len(found) == 1:
        return found[0]
    if not found:
        msg = f"module {parent.name} at {parent.place} names the submodule {item}, which nobody declares"
        raise UsageError(msg, hint="declare it with env.GpuModule before the program")
    msg = (
        f"module {parent.name} at {parent.place} names the submodule {item}, which is declared at {' and at '.join(m.place for m in found)}"
    )
    raise UsageError(msg, hint="pass the module itself in place of its name")
