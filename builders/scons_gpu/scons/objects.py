"""Ordinary builders take `.cu`: what an environment gets for that, and what the link of a program gets that holds such an object."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from scons_gpu.scons import _internals
from scons_gpu.scons.later import later

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from scons_gpu.scons import device_link, libraries
    from scons_gpu.toolchain import facts, fingerprint, runtime
else:
    facts, fingerprint = later("scons_gpu.toolchain.facts"), later("scons_gpu.toolchain.fingerprint")
    runtime = later("scons_gpu.toolchain.runtime")
    device_link, libraries = later("scons_gpu.scons.device_link"), later("scons_gpu.scons.libraries")

__all__ = ["add_builders"]

_NAME = "_GPU_RUNTIME"
_SYSTEM = ("-ldl", "-lrt", "-lpthread")
"""What the static runtime leaves to the system."""


_LINKED = "_GPU_LINKED"
_EMITTERS = ("PROGEMITTER", "SHLIBEMITTER", "LDMODULEEMITTER")


def add_builders(env: Any, declare: Callable[[Any, Any, Any, bool], Any], link: Callable[[Any, Any, Callable[[], Any]], Any]) -> None:
    """Makes `Object`, `SharedObject` and what links their objects take `.cu`. `declare`: see `_internals.takes`.

    `link` gets the environment of each link, its node, and what gives the objects of `.cu` that it takes, once SConscripts are read.
    """

    def emit(target: Any, source: Any, env: Any) -> Any:
        link(env, target[0], lambda: list(_objects(target[0].sources, target, env)))
        return target, source

    def declared(env: Any, target: Any, source: Any, shared: bool) -> None:  # noqa: FBT001 - `_internals.takes` calls it
        declare(env, target, source, shared)
        _add_link(env, emit)  # tools that were loaded since may have set their own

    _internals.takes(env, ".cu", declared)
    _add_link(env, emit)


def _add_link(env: Any, emit: Callable[..., Any]) -> None:
    """Links of `env` add CUDA's runtime, and go through the C++ compiler, where they take an object of a `.cu`."""
    libraries = str(env.get("_LIBFLAGS", ""))
    if _NAME not in libraries:
        env["_LIBFLAGS"] = f"${_LINKED} {libraries} ${_NAME}"
    env[_NAME], env[_LINKED] = _runtime, _registration
    for name in _EMITTERS:
        others = env.Flatten([env.get(name) or []])
        if not any(hasattr(other, "gpu") for other in others):
            env[name] = [*others, _marked(emit)]
    smart = env.get("SMARTLINK")
    if callable(smart) and not hasattr(smart, "gpu"):
        env["SMARTLINK"] = _through_cxx(smart)


def _marked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Known again as ours."""
    function.gpu = True  # type: ignore[attr-defined]
    return function


def _through_cxx(smart: Callable[..., str]) -> Callable[..., str]:
    """What chooses the linker goes by its sources' suffixes, and knows nothing of `.cu`."""

    def chosen(source: Any, target: Any, env: Any, for_signature: Any) -> str:
        found = smart(source=source, target=target, env=env, for_signature=for_signature)
        if found != "$CC" or not any(_objects(source, target, env)):
            return found
        # Without a C++ tool nobody has set it, and a command that begins with `-o` would pass for one whose failure does not matter.
        return "$CXX" if env.get("CXX") else "g++"

    return _marked(chosen)


def _registration(source: Any, target: Any, env: Any, for_signature: Any) -> list[str]:  # noqa: ARG001 - SCons' signature
    """The object that registers the code of relocatable objects, where the link takes some. Raises BuildError where it has none."""
    jobs = [node.attributes.gpu for node in _objects(source, target, env)]
    first = next((job for job in jobs if job.options.relocatable), None)
    if first is None:
        return []
    for node in (node for each in target or () for node in each.depends):
        if getattr(getattr(node.attributes, "gpu", None), "stage", "") == "register":
            return [str(node), *_asked_again(source, env)]
    raise device_link.refused(target[0], first)


def _asked_again(source: Any, env: Any) -> list[str]:
    """Archives of others that are sources, which stand before the registration: it asks for the members whose code it registers."""
    archives = [node for node in source or () if str(node).endswith(str(env.subst("$LIBSUFFIX")))]
    return [str(node) for node in archives if "unknown" in libraries.holding(node)]


def _runtime(source: Any, target: Any, env: Any, for_signature: Any) -> list[str]:
    """What is linked besides: nothing where no object is a `.cu`'s, or where the user names a runtime. Its content, for a signature."""
    jobs = [node.attributes.gpu for node in _objects(source, target, env)]
    named = [Path(str(name)).name for name in env.Flatten(env.get("LIBS", []))]
    found = _device_runtime(jobs, named, for_signature=for_signature)
    if not jobs or any("cudart" in name for name in named):
        return found
    library = runtime.find(jobs[0].headers)
    if library is None:
        places = ", ".join(map(str, runtime.folders(jobs[0].headers)))
        jobs[0].workspace.session.warn(f"no {runtime.LIBRARY} beside CUDA's headers; the linker has to find it (looked in {places})")
        return [*found, f"-l:{runtime.LIBRARY}", *_SYSTEM]
    return [*found, _spelled(library, jobs[0], for_signature=for_signature), *_SYSTEM]


def _device_runtime(jobs: Sequence[Any], named: Sequence[str], *, for_signature: Any) -> list[str]:
    """The host's half of what kernels call that launch kernels, as nvcc links it unasked; where the user names it, where it lies."""
    asked = any("cudadevrt" in name for name in named)
    for job in jobs:
        wanted = bool(job.options.relocatable) if asked else job.options.relocatable is True
        if wanted and (library := runtime.find(job.headers, runtime.DEVICE_LIBRARY)):
            spelled = _spelled(library, job, for_signature=for_signature)
            return [f"-L{library.parent}" if asked and not for_signature else spelled]
    return []


def _spelled(library: Path, job: Any, *, for_signature: Any) -> str:
    """A library's path; its content, for a signature."""
    if not for_signature:
        return str(library)
    return str(fingerprint.plain_file(str(library), version="", facts=facts.Facts(job.workspace.facts)).sha256)


def _objects(source: Any, target: Any, env: Any) -> Iterator[Any]:
    """The objects of `.cu` that are linked, in static libraries too. What a shared library holds is linked already.

    SCons' scanner has found libraries of `LIBS` when a link's command is spelled, those that are given by name among them.
    """
    found = [*(source or ()), *(node for each in target or () for node in getattr(each, "implicit", None) or ())]
    linked = tuple(str(env.subst(f"${name}")) for name in ("OBJSUFFIX", "SHOBJSUFFIX", "LIBSUFFIX"))
    waiting, seen = found, set()
    while waiting:
        node = waiting.pop()
        if id(node) in seen or not str(node).endswith(linked):
            continue
        seen.add(id(node))
        job = getattr(getattr(node, "attributes", None), "gpu", None)
        if job is not None and job.stage == "host":
            yield node
        else:
            waiting += getattr(node, "sources", None) or ()
