"""What a tool is: the version it tells and the SHA-256 of the bytes that run, so that an upgrade behind the same path is seen."""

from __future__ import annotations

import hashlib
import os
import re
import sys
import sysconfig
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scons_gpu.errors import ToolMissingError, ToolStoppedError
from scons_gpu.toolchain.follow import follow
from scons_gpu.toolchain.process import ask

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scons_gpu.toolchain.facts import Facts

__all__ = ["Identity", "clang", "file_sha256", "llvm", "nvidia_tool", "plain_file"]

_NVIDIA_VERSION = re.compile(r"\bV(\d+\.\d+\.\d+)\b")
_CLANG_VERSION = re.compile(r"\bclang version (\d+\.\d+\.\d+)")
_PROBE = "__attribute__((global)) void probe(int *p) { *p = 1; }\n"


@dataclass(frozen=True)
class Identity:
    """A version ("" if the tool does not tell), the hash, and what keeps the tool from being used, if something does."""

    version: str
    sha256: str
    trouble: str = ""


def file_sha256(path: str | Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    digest = hashlib.sha256()
    with Path(path).open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def plain_file(path: str, *, version: str, facts: Facts) -> Identity:
    """A file that no one starts, such as libdevice."""
    found = facts.learn("file", path, files=lambda: [path], find_out=lambda _: {"sha256": file_sha256(path)})
    return Identity(version=version, sha256=found["sha256"])


def nvidia_tool(path: str, *, facts: Facts) -> Identity:
    """An assembler or linker: the wrapper is followed, its binary is hashed, the tool itself is asked for its version.

    One that is ended before it can say has none this time: what it makes is not kept then, and the next build asks again.
    """

    def find_out(chain: Sequence[str]) -> dict[str, str]:
        said = _version_text(path)
        match = _NVIDIA_VERSION.search(said)
        # Of a script that cannot be followed there is only what it says; the build number is in that.
        sha256 = file_sha256(chain[-1]) if chain else _text_sha256(file_sha256(path), said)
        return {"version": match[1] if match else "", "sha256": sha256}

    try:
        found = facts.learn("tool", path, files=lambda: _chain(path), find_out=find_out)
    except ToolStoppedError:
        return Identity(version="", sha256=file_sha256(path))
    return Identity(version=found["version"], sha256=found["sha256"])


def _chain(path: str) -> tuple[str, ...]:
    """What `path` leads to, the binary last. None where that cannot be told: the binary may change while the script does not."""
    followed = follow(path)
    return followed.files if followed.real else ()


def clang(path: str, *, environ: Mapping[str, str], facts: Facts) -> Identity:
    """Clang is often a stub: the libraries that hold the compiler are hashed with it. `trouble` says if it cannot compile CUDA."""
    library_path = environ.get("LD_LIBRARY_PATH", "")

    def files() -> list[str]:
        chain = _chain(path)
        return [*chain, *_clang_libraries(chain[-1], library_path)] if chain else []

    def find_out(chain: Sequence[str]) -> dict[str, str]:
        said = _version_text(path)
        match = _CLANG_VERSION.search(said)
        # The first line names the source revision; the others name folders, which are not what makes the code.
        parts = [said.splitlines()[0] if said else "", *(file_sha256(file) for file in chain[len(_chain(path)) - 1 :] or [path])]
        return {"version": match[1] if match else "", "sha256": _text_sha256(*parts), "trouble": _cuda_trouble(path)}

    found = facts.learn(f"clang {library_path}", path, files=files, find_out=find_out)
    return Identity(version=found["version"], sha256=found["sha256"], trouble=found["trouble"])


def llvm(*, facts: Facts) -> str:
    """The LLVM inside llvmlite, as "22.1.0 <sha256 of its library>"; "" without llvmlite. Neither is loaded into this process."""
    spec = find_spec("llvmlite")
    folder = Path(spec.origin).parent if spec is not None and spec.origin else None
    library = next(iter(sorted((folder / "binding").glob("*llvmlite.*"))), None) if folder else None
    if folder is None or library is None:
        return ""
    file, root = str(library), str(folder.parent)
    found = facts.learn(
        "llvm", file, files=lambda: [file], find_out=lambda _: {"version": _llvm_version(root), "sha256": file_sha256(file)}
    )
    return f"{found['version']} {found['sha256']}" if found["version"] else ""


def _llvm_version(root: str) -> str:
    """Asked in a process of its own: loading LLVM takes 0.1 s and stays loaded."""
    code = "import sys; sys.path.insert(0, sys.argv[1]); import llvmlite.binding as b; print('%d.%d.%d' % b.llvm_version_info)"
    done = ask([sys.executable, "-I", "-c", code, root], tool="the process that asked LLVM for its version")
    return done.stdout.strip() if done.status == 0 else ""


def _version_text(path: str) -> str:
    try:
        done = ask([path, "--version"])
    except ToolMissingError:  # cannot be started: no version can be read, and that is said where the tool is needed
        return ""
    return done.stdout.strip() if done.status == 0 else ""


def _cuda_trouble(path: str) -> str:
    """Clang's own words if it cannot compile the smallest kernel. A NVPTX back end is not needed, the front end's part of it is."""
    flags = ["-x", "cuda", "--cuda-device-only", "--offload-arch=sm_80", "-nocudainc", "-nocudalib", "-S", "-emit-llvm"]
    try:
        done = ask([path, *flags, "-o", "-", "-"], text=_PROBE)
    except ToolMissingError as error:
        return error.what
    if done.status == 0 and "nvptx64" in done.stdout:
        return ""
    lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
    return lines[0].strip() if lines else f"it ended with status {done.status} and made no LLVM IR for nvptx64"


def _clang_libraries(binary: str, library_path: str) -> list[str]:
    """The files libclang-cpp and libLLVM, if clang is linked with them, found as the dynamic loader finds them."""
    found: dict[str, str] = {}
    waiting = [binary]
    while waiting:
        needed, runpath = _dynamic(waiting.pop())
        beside = str(Path(binary).resolve().parent.parent / "lib")
        folders = [folder for folder in (*library_path.split(os.pathsep), *runpath, beside, *_system_folders()) if folder]
        for name in needed:
            library = next((str(Path(folder, name)) for folder in folders if Path(folder, name).is_file()), "")
            if library and name not in found:
                found[name] = library
                waiting.append(library)
    return [found[name] for name in sorted(found)]


def _dynamic(path: str) -> tuple[list[str], list[str]]:
    """The compiler libraries that an ELF file asks for, and the folders where it says to look."""
    from elftools.common.exceptions import ELFError  # noqa: PLC0415 - 20 ms that only the first build pays
    from elftools.elf.dynamic import DynamicSection  # noqa: PLC0415 - the same
    from elftools.elf.elffile import ELFFile  # noqa: PLC0415 - the same

    needed: list[str] = []
    folders: list[str] = []
    origin = str(Path(path).resolve().parent)
    try:
        with Path(path).open("rb") as file:
            tags: list[Any] = [
                tag for section in ELFFile(file).iter_sections() if isinstance(section, DynamicSection) for tag in section.iter_tags()
            ]
    except (OSError, ELFError):
        return [], []
    for tag in tags:
        if tag.entry.d_tag == "DT_NEEDED" and tag.needed.startswith(("libclang-cpp", "libLLVM")):
            needed.append(tag.needed)
        elif tag.entry.d_tag in {"DT_RUNPATH", "DT_RPATH"}:
            text = tag.runpath if tag.entry.d_tag == "DT_RUNPATH" else tag.rpath
            folders += text.replace("${ORIGIN}", origin).replace("$ORIGIN", origin).split(":")
    return needed, folders


def _system_folders() -> list[str]:
    multiarch = sysconfig.get_config_var("MULTIARCH") or ""
    return [f"/usr/lib/{multiarch}", "/usr/lib64", "/usr/lib"]


def _text_sha256(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
