"""A build that is shipped: what is in the archive, what verify finds in one that was changed, and what is refused."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import zstandard
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from project import CUDA, HEAD, Project, ll

import scons_gpu
from scons_gpu.inspect.differing import places
from scons_gpu.inspect.verify import unpack, verify
from scons_gpu.link import manifest, provenance, release, tarball, zstd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TOP = Path(__file__).parents[2]
COUNTS = """
@counter = addrspace(1) externally_initialized global i32 7, align 4
define ptx_kernel void @counts(ptr addrspace(1) %data) {
  %old = load i32, ptr addrspace(1) @counter, align 4
  store i32 %old, ptr addrspace(1) %data, align 4
  ret void
}
"""
SCONSTRUCT = f"""\
{HEAD.replace('["sm_90"]', '["sm_90", "compute_80"]')}{CUDA}
env.Append(CPPDEFINES={{"ADD": "2.0f"}})
def written(target, source, env):
    open(str(target[0]), "w").write("#define BY 3.0f\\n")
env.Command("build/by.h", [], written)
apart = env.GpuModule("apart", ["add.ll"], GPU_LINK="bundle")
net = env.GpuProgram("build/net", env.GpuModule("net", ["k/scale.cu", "counts.ll"], submodules=[apart], CPPPATH=["k", "build"]))
other = env.GpuProgram("build/other", env.GpuModule("other", ["add.ll"], GPU_ARCHS="sm_90", GPU_LINEINFO=ARGUMENTS.get("lines", "0")))
env.GpuRelease("dist/net-1.0.tar.zst", [net, other], licenses=["LICENSE", "k/NOTICE"], level=3)
env.GpuRelease("dist/bare/net-1.0.tar.zst", net, notes=False, level=3)
"""
FILES = [
    "LICENSES/LICENSE",
    "LICENSES/NOTICE",
    "SHA256SUMS",
    "components.cdx.json",
    "net.json",
    "net/apart.gpubundle",
    "net/net.fatbin",
    "net/net/compute_80.ptx",
    "net/net/sm_90.cubin",
    "other.json",
    "other/other.fatbin",
    "other/other/sm_90.cubin",
    "provenance.intoto.json",
]


def written(root: Path) -> Project:
    project = Project(root)
    project.write("k/scale.cu", '#include "h.h"\n#include "by.h"\n__global__ void scale(float* x) { x[threadIdx.x] *= ADD + OF + BY; }\n')
    project.write("k/h.h", "#define OF 1.0f\n")
    project.write("k/NOTICE", "A notice.\n")
    project.write("LICENSE", "A licence.\n")
    project.write("add.ll", ll("add"))
    project.write("counts.ll", ll(head=COUNTS))
    project.write("SConstruct", SCONSTRUCT)
    return project


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = written(tmp_path_factory.mktemp("release") / "project")
    made.build()
    return made


@pytest.fixture(scope="module")
def archive(project: Project) -> bytes:
    return project.bytes("dist/net-1.0.tar.zst")


def packed(files: dict[str, bytes], *, name: str = "net-1.0", summed: bool = True) -> bytes:
    """Files as an archive that is right in itself: only what they say may be wrong."""
    if summed:
        files = {**files, release.SUMS: release.sums(files)}
    return zstd.compress(tarball.write_tar({f"{name}/{path}": data for path, data in files.items()}), level=3)


def test_it_holds_the_programs_and_all_that_is_said_of_them(project: Project, archive: bytes, tmp_path: Path) -> None:
    subprocess.run(["tar", "-xf", project.path("dist/net-1.0.tar.zst")], cwd=tmp_path, check=True)
    top = tmp_path / "net-1.0"
    subprocess.run(["sha256sum", "--quiet", "--strict", "-c", "SHA256SUMS"], cwd=top, check=True)
    files = {path.relative_to(top).as_posix(): path.read_bytes() for path in top.rglob("*") if path.is_file()}
    assert sorted(files) == FILES
    assert [files[name] for name in FILES if name.endswith((".fatbin", "bundle", "net.json"))] == [
        project.bytes(f"build/{name}") for name in FILES if name.endswith((".fatbin", "bundle", "net.json"))
    ]
    assert verify(archive).problems == []
    loaded = scons_gpu.load(top / "net.json")
    assert {name: loaded[name].archs for name in loaded} == {"apart": ("sm_90", "compute_80"), "net": ("sm_90", "compute_80")}
    shown = project.command("verify", "dist/net-1.0.tar.zst")
    assert (shown.returncode, shown.stdout) == (0, "dist/net-1.0.tar.zst: whole: release net-1.0, 13 files, 3 modules, 4 kernels\n")


def test_what_is_said_of_it_is_exact_and_tells_no_place(project: Project, archive: bytes) -> None:
    _, files, _ = unpack(archive)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(files[release.COMPONENTS].decode()) is None
    bom = json.loads(files[release.COMPONENTS])
    assert bom["metadata"]["component"] == {"type": "application", "bom-ref": "release", "name": "net", "version": "1.0"}
    said = provenance.from_text(files[release.PROVENANCE].decode(), path="p")
    inputs = {(each.kind, each.name): each.sha256 for each in said.inputs}
    own = {key: digest for key, digest in inputs.items() if key[0] != "tool" and not key[1].startswith(("clang/", "cuda/", "system/"))}
    assert own == {
        (kind, name): release.digest(project.bytes(name))
        for kind, name in [
            ("header", "build/by.h"),
            ("header", "k/h.h"),
            ("header", "words.h"),
            ("licence", "LICENSE"),
            ("licence", "k/NOTICE"),
            ("source", "add.ll"),
            ("source", "counts.ll"),
            ("source", "k/scale.cu"),
        ]
    }
    tools = {name for kind, name in inputs if kind == "tool"}
    assert tools == {"clang", "fatbinary", "libdevice", "llvm", "ptxas"}
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in inputs.values())
    assert set(said.subjects) == {*FILES} - {release.SUMS, release.PROVENANCE}
    assert said.external["programs"]["net.json"]["modules"]["apart"]["options"]["link"] == "bundle"
    for name in (release.PROVENANCE, release.COMPONENTS, release.SUMS, *(name for name in FILES if name.endswith(".json"))):
        assert str(project.root.parent).encode() not in files[name]
        assert b"/usr/" not in files[name]
        assert not re.search(rb"\b20\d\d-\d\d-\d\d", files[name])


def test_elsewhere_it_is_the_same_and_an_edit_that_shows_is_packed(archive: bytes, tmp_path: Path) -> None:
    other = written(tmp_path / "quite another place" / "p")
    other.build("-j3")
    assert other.bytes("dist/net-1.0.tar.zst") == archive
    other.idle()
    other.edit("k/h.h", "1.0f", "1.0f  // a comment: no code changes, and what is said of the input does")
    other.build()
    assert dict(other.done()) == {"source": 2, "release": 2}
    said = [
        provenance.from_text(unpack(each)[1][release.PROVENANCE].decode(), path="p")
        for each in (archive, other.bytes("dist/net-1.0.tar.zst"))
    ]
    assert {each.name for each in {*said[0].inputs} ^ {*said[1].inputs}} == {"k/h.h"}
    other.idle()
    refused = other.fail("lines=1", "dist").stderr
    assert "error: module other: its code was built with GPU_LINEINFO, and holds names and lines of sources" in refused
    assert not other.exists("dist/net-1.0.tar.zst")
    other.build("-c")
    assert not list(other.path("build").rglob("*.inputs.json"))


def test_without_notes_no_code_tells_which_tools_made_it(project: Project, archive: bytes) -> None:
    bare = project.bytes("dist/bare/net-1.0.tar.zst")
    assert verify(bare).problems == []
    files, told = unpack(bare)[1], unpack(archive)[1]
    for name in ("net/net.fatbin", "net/net/sm_90.cubin", "net/apart.gpubundle"):
        assert b"Cuda compilation tools" in told[name]
        assert b"Cuda compilation tools" not in files[name]
        assert len(files[name]) == len(told[name])
    assert [place.where for place in places(told["net/net/sm_90.cubin"], files["net/net/sm_90.cubin"])] == [".note.nv.tkinfo"]
    said = provenance.from_text(files[release.PROVENANCE].decode(), path="p")
    assert (said.external["notes"], said.external["lineinfo"]) == (False, False)


def test_any_byte_that_is_another_is_found(archive: bytes) -> None:
    """The frame of compression, headers, padding, content. The thousand of each are in benchmarks/releases.py."""
    chance = random.Random(11)  # noqa: S311 - the same bytes in each run
    for _ in range(150):
        assert verify(_changed(archive, chance)).problems != []
    tar = zstd.decompress(archive, most=1 << 30)
    for _ in range(25):
        changed = _changed(tar, chance)
        found = verify(zstd.compress(changed, level=3)).problems
        assert found != []
        assert all(str(problem) for problem in found)


def _changed(data: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(len(data))
    return data[:place] + bytes([data[place] ^ chance.randrange(1, 256)]) + data[place + 1 :]


def _resources(files: dict[str, bytes]) -> None:
    files["net.json"] = re.sub(rb'"registers": \d+', b'"registers": 77', files["net.json"])


def _kernel(files: dict[str, bytes]) -> None:
    files["other.json"] = files["other.json"].replace(b'"add": {', b'"sub": {')


def _schema(files: dict[str, bytes]) -> None:
    files["other.json"] = files["other.json"].replace(b'"bypass": false', b'"bypass": "no"')


def _image(files: dict[str, bytes]) -> None:
    files["other/other/sm_90.cubin"] = files["net/net/sm_90.cubin"]


def _fatbin(files: dict[str, bytes]) -> None:
    files["other/other.fatbin"] = files["net/net.fatbin"]


def _ptx(files: dict[str, bytes]) -> None:
    files["net/net/compute_80.ptx"] = files["net/net/compute_80.ptx"].replace(b".target sm_80", b".target sm_75")


def _tool(files: dict[str, bytes]) -> None:
    files[release.PROVENANCE] = files[release.PROVENANCE].replace(b'"name": "ptxas"', b'"name": "ptxaz"')


def _subject(files: dict[str, bytes]) -> None:
    files[release.PROVENANCE] = files[release.PROVENANCE].replace(b'"name": "net.json"', b'"name": "nut.json"', 1)


def _component(files: dict[str, bytes]) -> None:
    files[release.COMPONENTS] = files[release.COMPONENTS].replace(b'"version": "1.0"', b'"version": "1.1"')


def _extra(files: dict[str, bytes]) -> None:
    files["readme"] = b"hello"


def _less(files: dict[str, bytes]) -> None:
    del files["net/apart.gpubundle"]


def _bundle(files: dict[str, bytes]) -> None:
    files["net/apart.gpubundle"] = files["net/apart.gpubundle"][:-40]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_resources, ("net/net/sm_90.cubin: kernel counts: registers is ", ", and the manifest says 77")),
        (_resources, ("net/apart.gpubundle: sm_90/", ".cubin: kernel add: registers is ")),
        (_resources, ("net/apart.gpubundle: manifest.json: kernels.add.archs.sm_90.registers", "and should be 77")),
        (_kernel, ("other/other/sm_90.cubin: kernel sub: is in the manifest, and not here",)),
        (_kernel, ("other/other/sm_90.cubin: kernel add: is not in the manifest",)),
        (_schema, ("other.json: modules.other.bypass: 'no' is not of type 'boolean'",)),
        (_image, ("other/other/sm_90.cubin: sha256: is ",)),
        (_image, ("other/other/sm_90.cubin: kernel _Z5scalePf", "is not in the manifest")),
        (_fatbin, ("other/other.fatbin: other/other/sm_90.cubin: is in it 0 times, and should be once",)),
        (_ptx, ("net/net/compute_80.ptx: architecture: it is PTX for sm_75, and the manifest says compute_80",)),
        (_tool, ("provenance.intoto.json: resolvedDependencies: ptxas: is not 13.5", "which the manifest names")),
        (_subject, ("provenance.intoto.json: subject.net.json: is not there",)),
        (_component, ("components.cdx.json: metadata.component.version: is '1.1', and should be '1.0'",)),
        (_extra, ("readme: belongs to no program",)),
        (_less, ("net/apart.gpubundle: is code of module apart, and not there",)),
        (_bundle, ("net/apart.gpubundle: ",)),
    ],
)
def test_what_is_wrong_is_told_by_member_and_field(
    archive: bytes, change: Callable[[dict[str, bytes]], None], said: tuple[str, ...]
) -> None:
    """Though all checksums are right: whoever changed it made those anew."""
    files = dict(unpack(archive)[1])
    change(files)
    found = [str(problem) for problem in verify(packed(files)).problems]
    assert [line for line in found if all(part in line for part in said)] != [], found


def test_checksums_that_nobody_made_anew_tell_the_file(archive: bytes) -> None:
    files = {**unpack(archive)[1], "LICENSES/LICENSE": b"Another.\n"}
    assert str(verify(packed(files, summed=False)).problems[0]).startswith("LICENSES/LICENSE: SHA-256: is ")
    absent = {path: data for path, data in files.items() if path != release.SUMS}
    assert "SHA256SUMS: is not there" in [str(problem) for problem in verify(packed(absent, summed=False)).problems]


def _inputs(archive: bytes) -> Iterator[tuple[str, bytes]]:
    tar = zstd.decompress(archive, most=1 << 30)
    yield "empty", b""
    yield "no zstd", b"PK\x03\x04 and so on" * 100
    yield "cut short", archive[: len(archive) // 2]
    yield "more behind it", archive + b"x"
    yield "a frame behind it", archive + zstandard.ZstdCompressor().compress(b"more")
    yield "something that is skipped behind it", archive + b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd"
    yield "no tar", zstd.compress(b"text" * 1000, level=1)
    yield "a cut tar", zstd.compress(tar[:-9000], level=3)
    yield "a longer tar", zstd.compress(tar + bytes(512), level=3)
    yield "a bomb", zstandard.ZstdCompressor().compress(bytes(3 << 20))
    yield "two folders", zstd.compress(tarball.write_tar({"a/x": b"", "b/x": b""}), level=1)
    yield "no folder", zstd.compress(tarball.write_tar({"x": b""}), level=1)
    yield "other levels of compression", zstd.compress(tar, level=4)
    for name in (
        release.PROVENANCE,
        release.COMPONENTS,
        "net.json",
        release.SUMS,
        "net/net.fatbin",
        "net/net/sm_90.cubin",
        "net/apart.gpubundle",
    ):
        for data in (b"", b"[]", b"{}", b"[" * 100000, b"\xff\xfe", b"\x7fELF\x02\x01" + bytes(90), b"PK\x05\x06" + bytes(18)):
            yield f"{name} is {data[:5]!r}", packed({**unpack(archive)[1], name: data}, summed=name != release.SUMS)


def test_whatever_it_is_given_it_says_what_is_wrong_and_writes_nothing(project: Project, archive: bytes) -> None:
    before = project.files("dist/*")
    for what, data in _inputs(archive):
        assert verify(data, most=2 << 20).problems != [], what
    assert project.files("dist/*") == before


def test_the_command_tells_all_in_lines_or_json(project: Project, archive: bytes) -> None:
    files = dict(unpack(archive)[1])
    _resources(files)
    project.path("changed.tar.zst").write_bytes(packed(files))
    shown = project.command("verify", "changed.tar.zst")
    assert shown.returncode == 1
    assert "error: changed.tar.zst: net/net/sm_90.cubin: kernel counts: registers is " in shown.stderr
    told: dict[str, Any] = json.loads(project.command("verify", "--json", "changed.tar.zst").stdout)
    assert (told["schema"], told["whole"], told["release"]) == ("scons-gpu/verify/1", False, "net-1.0")
    assert {"member", "field", "what"} == set(told["problems"][0])
    os.mkfifo(project.path("pipe"))  # nothing waits for who would write into it
    assert project.command("verify", "pipe").stderr == "error: pipe: not a file\n"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('env.GpuRelease("net.zip", net)', "a release is a file NAME.tar.zst, and this is net.zip"),
        ('env.GpuRelease("net-1.tar.zst", "k.cu")', "GpuRelease(net-1.tar.zst): k.cu is no program"),
        ('env.GpuRelease("net-1.tar.zst", net, level=20)', "GpuRelease(net-1.tar.zst): level=20"),
        ('env.GpuRelease("net-1.tar.zst", [net, twin])', "GpuRelease(net-1.tar.zst): two programs are called net"),
        ('env.GpuRelease("net-1.tar.zst", net, licenses=["LICENSE", "k/LICENSE"])', "two licence files are called LICENSE"),
    ],
)
def test_a_mistake_is_told_when_the_sconstruct_is_read(tmp_path: Path, line: str, said: str) -> None:
    project = Project(tmp_path)
    project.write("add.ll", ll("add"))
    declared = 'net = env.GpuProgram("build/net", env.GpuModule("net", ["add.ll"]))\ntwin = env.GpuProgram("b/net", env.GpuModule("net", ["add.ll"]))\n'
    project.write("SConstruct", declared + line + "\n")
    result = project.run("-n")
    assert result.returncode == 2
    assert said in result.stderr


def test_the_schema_is_shipped_with_the_package() -> None:
    shipped = manifest.__file__.replace("manifest.py", "manifest.schema.json")
    with open(shipped, encoding="utf-8") as file:  # noqa: PTH123 - as an installed package has it
        assert json.load(file)["$id"] == manifest.SCHEMA


def test_the_example_of_the_docs_runs_as_it_is_printed(tmp_path: Path) -> None:
    page = (TOP / "docs/releasing.md").read_text(encoding="utf-8")
    told = page[: page.index("## `env.GpuRelease")]
    blocks = dict(re.findall(r"^```([\w+]*)\n(.*?)^```$", told, re.MULTILINE | re.DOTALL))  # of two of one kind the second
    example = Project(tmp_path)
    example.write("scale.cu", blocks["c++"])
    example.write("SConstruct", blocks["python"])
    example.write("LICENSE", "A licence.\n")
    example.build("dist")
    checked = example.command("verify", "dist/net-1.0.tar.zst")
    assert checked.stdout == "dist/net-1.0.tar.zst: whole: release net-1.0, 8 files, 1 modules, 1 kernels\n"
    again = example.command("reproduce", "--against", "dist/net-1.0.tar.zst")
    assert again.stdout == "dist/net-1.0.tar.zst: the build makes the same, all 8 files\n", again.output
    subprocess.run(
        ["bash", "-euc", blocks["sh"]], cwd=example.path("dist"), check=True, capture_output=True
    )  # the last: of tar and sha256sum
    printed = sorted(line.split()[0].removeprefix("net-1.0/") for line in blocks[""].splitlines())
    assert printed == sorted(unpack(example.bytes("dist/net-1.0.tar.zst"))[1])
