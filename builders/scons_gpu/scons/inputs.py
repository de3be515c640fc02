"""Which files a program was made from: the leaves of its graph, each with a name that does not tell where it lies on a machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scons_gpu.scons.sources import Compiling
from scons_gpu.source.clang import SYSTEM

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Read", "Roots", "read"]


@dataclass(frozen=True)
class Read:
    """One file."""

    kind: str
    """`source`, `header`, `tuning`, or `licence`."""
    name: str
    path: Path


@dataclass(frozen=True)
class Roots:
    """Folders that differ from machine to machine, with what stands for them: as `__FILE__` and line information have it."""

    top: Path
    home: Path | None = None
    """Of the compiler; none where it is the system's."""
    headers: Path | None = None
    called: str = "clang/"
    """What stands for `home`."""

    def name(self, path: Path) -> str:
        """The path as it is the same everywhere. One folder may hold another, as a tree its environment: the longest counts."""
        roots = ((self.top, ""), (self.home, self.called), (self.headers, "cuda/"))
        holding = [(len(root.parts), prefix, root) for root, prefix in roots if root is not None and path.is_relative_to(root)]
        if holding:
            _, prefix, root = max(holding)
            return prefix + path.relative_to(root).as_posix()
        parts = path.parts
        below = parts[parts.index("include") + 1 :] if "include" in parts[:-1] else parts[-1:]
        return "/".join(("system", *below))


def read(programs: Sequence[Any], top: Path) -> Iterator[Read]:
    """Sources, headers that compilers read, and tuning files. `programs`: the nodes of manifests, whose chains are all done."""
    known: set[Any] = set(programs)
    waiting = list(programs)
    while waiting:
        node = waiting.pop()
        job = node.attributes.gpu
        roots = _roots(job, top)
        for child in node.children(scan=0):
            if getattr(child.attributes, "gpu", None) is not None:
                if child not in known:
                    known.add(child)
                    waiting.append(child)
            elif (leaf := (child, _kind(child, job), roots)) not in known:  # sources name the same headers by the hundred
                known.add(leaf)
                yield Read(leaf[1], roots.name(Path(child.srcnode().get_abspath())), Path(child.rfile().get_abspath()))


def _kind(node: Any, job: Any) -> str:
    if isinstance(job, Compiling):
        return "source" if node is job.source.node else "header"
    return "tuning" if job.stage == "choose" else "source"


def _roots(job: Any, top: Path) -> Roots:
    if not isinstance(job, Compiling):
        return Roots(top)
    home = Path(job.tool.path).parent.parent
    return Roots(
        top,
        home=None if home in SYSTEM else home,
        headers=Path(job.headers).absolute() if job.headers else None,
        called="clang/" if job.tool.name == "clang" else "cuda/",
    )
