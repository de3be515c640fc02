"""Ordinary builders take `.cu`: what an environment gets for that, and what the link of a program gets that holds such an object."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from scons_gpu.scons import _internals
from scons_gpu.scons.later import later

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from scons_gpu.toolchain import facts, fingerprint, runtime
else:
    facts, fingerprint = later("scons_gpu.toolchain.facts"), later("scons_gpu.toolchain.fingerprint")
    runtime = later("scons_gpu.toolchain.runtime")

__all__ = ["add_builders"]

_NAME = "_GPU_RUNTIME"
_SYSTEM = ("-ldl", "-lrt", "-lpthread")
"""What the static runtime leaves to the system."""


def add_builders(env: Any, declare: Callable[[Any, Any, Any, bool], Any]) -> None:
    """Makes `Object`, `SharedObject` and what links their objects take `.cu`. `declare`: see `_internals.takes`."""

    def declared(env: Any, target: Any, source: Any, shared: bool) -> None:  # noqa: FBT001 - `_internals.takes` calls it
        declare(env, target, source, shared)
        _add_link(env)  # tools that were loaded since may have set their own

    _internals.takes(env, ".cu", declared)
    _add_link(env)


def _add_link(env: Any) -> None:
    """Links of `env` add CUDA's runtime, and go through the C++ compiler, where they take an object of a `.cu`."""
    libraries = str(env.get("_LIBFLAGS", ""))
    if _NAME not in libraries:
        env["_LIBFLAGS"] = f"{libraries} ${_NAME}"
    env[_NAME] = _runtime
    smart = env.get("SMARTLINK")
    if callable(smart) and not hasattr(smart, "gpu"):
        env["SMARTLINK"] = _through_cxx(smart)


def _through_cxx(smart: Callable[..., str]) -> Callable[..., str]:
    """What chooses the linker goes by its sources' suffixes, and knows nothing of `.cu`."""

    def chosen(source: Any, target: Any, env: Any, for_signature: Any) -> str:
        found = smart(source=source, target=target, env=env, for_signature=for_signature)
        if found != "$CC" or not any(_objects(source, target, env)):
            return found
        # Without a C++ tool nobody has set it, and a command that begins with `-o` would pass for one whose failure does not matter.
        return "$CXX" if env.get("CXX") else "g++"

    chosen.gpu = True  # type: ignore[attr-defined]
    return chosen


def _runtime(source: Any, target: Any, env: Any, for_signature: Any) -> list[str]:
    """What is linked besides: nothing where no object is a `.cu`'s, or where the user names a runtime. Its content, for a signature."""
    job = next(_objects(source, target, env), None)
    if job is None or any("cudart" in Path(str(name)).name for name in env.Flatten(env.get("LIBS", []))):
        return []
    library = runtime.find(job.headers)
    if library is None:
        places = ", ".join(map(str, runtime.folders(job.headers)))
        job.workspace.session.warn(f"no {runtime.LIBRARY} beside CUDA's headers; the linker has to find it (looked in {places})")
        return [f"-l:{runtime.LIBRARY}", *_SYSTEM]
    if for_signature:
        return [fingerprint.plain_file(str(library), version="", facts=facts.Facts(job.workspace.facts)).sha256, *_SYSTEM]
    return [str(library), *_SYSTEM]


def _objects(source: Any, target: Any, env: Any) -> Iterator[Any]:
    """The jobs of objects of `.cu` that are linked, in static libraries too. What a shared library holds is linked already.

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
            yield job
        else:
            waiting += getattr(node, "sources", None) or ()
