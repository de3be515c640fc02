from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import scons_gpu
from scons_gpu.errors import DamagedError, SourceError, ToolKilledError, UnsupportedArchError
from scons_gpu.lower.options import LowerOptions, key
from scons_gpu.split import index
from scons_gpu.split.digest import fields
from scons_gpu.store.store import Store
from scons_gpu.toolchain.arch import Target
from scons_gpu.workers.pool import Pool

if TYPE_CHECKING:
    from collections.abc import Iterator

HEAD = 'target triple = "nvptx64-nvidia-cuda"\n'
LIBDEVICE = str(next(Path(sys.prefix).glob("lib/python3*/site-packages/nvidia/cu13/nvvm/libdevice/libdevice.10.bc")))


def stubborn(name: str, loops: int = 1) -> str:
    """A kernel whose loops ask to be unrolled and cannot be: LLVM says so on standard error."""
    text = f"define ptx_kernel void @{name}(ptr %p, i32 %n) {{\nentry:\n  br label %l0\n"
    for i in range(loops):
        text += f"l{i}:\n  %v{i} = load volatile i32, ptr %p\n  %c{i} = icmp slt i32 %v{i}, %n\n"
        text += f"  br i1 %c{i}, label %l{i}, label %l{i + 1}, !llvm.loop !{2 * i + 2}\n"
    text += f"l{loops}:\n  ret void\n}}\n"
    marks = [
        f'!{2 * i + 2} = distinct !{{!{2 * i + 2}, !{2 * i + 3}}}\n!{2 * i + 3} = !{{!"llvm.loop.vectorize.enable", i1 true}}\n'
        for i in range(loops)
    ]
    return HEAD + text + "".join(marks)


FLAT = HEAD + "define ptx_kernel void @flat(ptr addrspace(1) %x) {\n  store float 0.0, ptr addrspace(1) %x\n  ret void\n}\n"
OPTIONS = LowerOptions(ptx=78)


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    made = Pool()
    yield made
    made.close()


def test_t7_what_llvm_says_belongs_to_its_unit(pool: Pool, tmp_path: Path) -> None:
    (tmp_path / "flat.ll").write_text(FLAT)
    (tmp_path / "stubborn.ll").write_text(stubborn("stubborn"))

    def said(name: str) -> str:
        return str(pool.run("lower", file=str(tmp_path / name), arch="sm_90", options=OPTIONS)["output"])

    assert [bool(said(name)) for name in ("flat.ll", "stubborn.ll", "flat.ll")] == [False, True, False]
    assert "loop not vectorized" in said("stubborn.ll")
    with ThreadPoolExecutor(2) as threads:
        loud = list(threads.map(said, ["flat.ll", "stubborn.ll"] * 6))
    assert [bool(text) for text in loud] == [False, True] * 6


def test_m11_a_unit_that_takes_longer_than_it_may_is_ended_and_no_other(pool: Pool, tmp_path: Path) -> None:
    adds = "".join(f"  %v{n + 1} = call float @llvm.fma.f32(float %v{n}, float {n % 7}.0, float %v{n})\n" for n in range(60_000))
    text = f"{HEAD}define ptx_kernel void @long(ptr addrspace(1) %x, float %v0) {{\n{adds}  store float %v60000, ptr addrspace(1) %x\n"
    (tmp_path / "long.ll").write_text(f"{text}  ret void\n}}\ndeclare float @llvm.fma.f32(float, float, float)\n")
    (tmp_path / "flat.ll").write_text(FLAT)
    for _ in range(2):  # a limit is its task's alone
        with pytest.raises(ToolKilledError, match="took more CPU time than it may"):
            pool.run("lower", file=str(tmp_path / "long.ll"), arch="sm_90", options=OPTIONS, seconds=0.1)
        assert ".entry flat(" in pool.run("lower", file=str(tmp_path / "flat.ll"), arch="sm_90", options=OPTIONS)["ptx"]
    assert pool.run("lower", file=str(tmp_path / "flat.ll"), arch="sm_90", options=OPTIONS, seconds=0.1)["bytes"]
    assert ".entry long(" in pool.run("lower", file=str(tmp_path / "long.ll"), arch="sm_90", options=OPTIONS)["ptx"]


def test_t7_a_flood_is_a_line_for_each_message(pool: Pool, tmp_path: Path) -> None:
    (tmp_path / "many.ll").write_text(stubborn("many", loops=30))
    output = pool.run("lower", file=str(tmp_path / "many.ll"), arch="sm_90", options=OPTIONS)["output"]
    assert [line.endswith("(30 times)") for line in output.splitlines()] == [True, True]


def test_dropped_debug_information_is_nothing_to_tell(pool: Pool, tmp_path: Path) -> None:
    text = FLAT.replace("(ptr addrspace(1) %x) {", "(ptr addrspace(1) %x) !dbg !4 {") + (
        "!llvm.dbg.cu = !{!0}\n!llvm.module.flags = !{!2}\n!0 = distinct !DICompileUnit(language: DW_LANG_C99, file: !1, emissionKind: FullDebug)\n"
        '!1 = !DIFile(filename: "k.cu", directory: "/x")\n!2 = !{i32 2, !"Debug Info Version", i32 3}\n'
        '!4 = distinct !DISubprogram(name: "flat", file: !1, line: 1, type: !5, unit: !0, spFlags: DISPFlagDefinition)\n'
        "!5 = !DISubroutineType(types: !6)\n!6 = !{null}\n"
    )
    (tmp_path / "k.ll").write_text(text)
    assert pool.run("lower", file=str(tmp_path / "k.ll"), arch="sm_90", options=OPTIONS)["output"] == ""
    assert ".loc" in pool.run("lower", file=str(tmp_path / "k.ll"), arch="sm_90", options=LowerOptions(ptx=78, lineinfo=True))["ptx"]


def test_t3_a_unit_goes_from_store_to_store_with_its_record(pool: Pool, tmp_path: Path) -> None:
    store = Store([tmp_path / "store"])
    name = store.put_text("slice", stubborn("k"))
    made_of = key(slice=name, target=Target("sm_90", real=True), options=OPTIONS, llvm="22")
    path = store.claim("ptx", fields(dict(made_of)), made_of, suffix=".ptx")
    answer = pool.run("lower", slice=name, roots=[store.root], arch="sm_90", options=OPTIONS, libdevice=LIBDEVICE, path=path, key=made_of)
    assert "ptx" not in answer
    assert ".entry k(" in path.read_text()
    record = store.check(path)
    assert record is not None
    assert record.bytes == answer["bytes"] == path.stat().st_size
    assert record.key == made_of
    assert "loop not vectorized" in record.output
    assert 0 < record.seconds < 60


def test_t1_a_slice_that_the_store_lost_is_an_error_that_says_what_to_do(pool: Pool, tmp_path: Path) -> None:
    with pytest.raises(DamagedError, match="build again"):
        pool.run("lower", slice="0" * 32, roots=[tmp_path], arch="sm_90", options=OPTIONS)


def test_ptx_goes_to_a_file_whole_or_not_at_all(pool: Pool, tmp_path: Path) -> None:
    (tmp_path / "k.ll").write_text(FLAT)
    (tmp_path / "bad.ll").write_text("define nonsense")
    pool.run("lower", file=tmp_path / "k.ll", arch="sm_90", options=OPTIONS, output=tmp_path / "k.ptx")
    assert ".entry flat(" in (tmp_path / "k.ptx").read_text()
    with pytest.raises(SourceError):
        pool.run("lower", file=tmp_path / "bad.ll", arch="sm_90", options=OPTIONS, output=tmp_path / "bad.ptx")
    with pytest.raises(SourceError, match=r"absent\.ll"):
        pool.run("lower", file=tmp_path / "absent.ll", arch="sm_90", options=OPTIONS)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.ll", "k.ll", "k.ptx"]


def test_a_source_goes_all_the_way_to_ptx(pool: Pool, tmp_path: Path) -> None:
    (tmp_path / "k.ll").write_text(FLAT + "define ptx_kernel void @other() {\n  ret void\n}\n")
    pool.run("source", path=tmp_path / "k.ll", arch="sm_90", output=tmp_path / "ir" / "k.ll")
    roots = [tmp_path / "store"]
    done = pool.run(
        "split", path=tmp_path / "ir" / "k.ll", source="k.ll", arch="sm_90", form="apart", roots=roots, output=tmp_path / "k.json"
    )
    found = index.from_text((tmp_path / "k.json").read_text())
    assert done["units"] == len(found.units) == 2
    assert found.source == "k.ll"
    texts = [pool.run("lower", slice=unit.slice, roots=roots, arch="sm_90", options=OPTIONS)["ptx"] for unit in found.units]
    assert sorted(name for text in texts for name in ("flat", "other") if f".entry {name}(" in text) == ["flat", "other"]


def test_a_person_can_talk_to_a_worker(tmp_path: Path) -> None:
    (tmp_path / "k.ll").write_text(FLAT)
    request = json.dumps({"op": "lower", "file": str(tmp_path / "k.ll"), "arch": "sm_90", "options": {"ptx": 78}})
    environ = {**os.environ, "PYTHONPATH": str(Path(scons_gpu.__file__).parent.parent)}
    command = [sys.executable, "-m", "scons_gpu.workers.worker"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environ
    ) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        worker.stdin.write(request + "\n")
        worker.stdin.flush()
        answer = json.loads(worker.stdout.readline())
        worker.stdin.close()
        assert worker.wait(timeout=60) == 0
    assert answer["ok"] is True
    assert ".entry flat(" in answer["ptx"]


LIBRARY = str(next(Path(sys.prefix).glob("lib/python3*/site-packages/nvidia/cu13/lib*/libnvvm.so.4")))
BY_NVVM = LowerOptions(ptx=95, by="nvvm")


def test_a_worker_lowers_by_either(pool: Pool, tmp_path: Path) -> None:
    """One process, one after the other: neither leaves anything behind in what the other makes."""
    (tmp_path / "flat.ll").write_text(FLAT)
    file = str(tmp_path / "flat.ll")

    def both() -> list[str]:
        by_llvm = pool.run("lower", file=file, arch="sm_100", options=LowerOptions(ptx=90))["ptx"]
        return [by_llvm, pool.run("lower", file=file, arch="sm_100", options=BY_NVVM, nvvm=LIBRARY)["ptx"]]

    first = both()
    assert [text.partition("\n.version ")[2][:3] for text in first] == ["9.0", "9.5"]
    assert both() == first


def test_a4_what_an_architecture_lacks_is_named_where_libnvvm_says_unsupported(pool: Pool, tmp_path: Path) -> None:
    call = "call void @llvm.nvvm.wgmma.fence.sync.aligned()"
    (tmp_path / "k.ll").write_text(
        f"{HEAD}define ptx_kernel void @k() {{\n  {call}\n  ret void\n}}\ndeclare void @llvm.nvvm.wgmma.fence.sync.aligned()\n"
    )
    with pytest.raises(UnsupportedArchError, match=r"llvm\.nvvm\.wgmma\.fence\.sync\.aligned \(wgmma\) needs sm_90a"):
        pool.run("lower", file=str(tmp_path / "k.ll"), arch="sm_100", options=BY_NVVM, nvvm=LIBRARY)


def test_t7_what_libnvvm_says_belongs_to_its_unit(tmp_path: Path) -> None:
    """What it says of every kernel of clang's is no news (`test_nvvm`); here it is let through, for want of something that is."""
    package = str(Path(scons_gpu.__file__).parents[1])
    hook = f"import sys\nsys.path.insert(0, {package!r})\nimport re, scons_gpu.lower.libnvvm as lib\nlib._EXPECTED = re.compile('(?!)')\n"
    (tmp_path / "sitecustomize.py").write_text(hook)
    (tmp_path / "k.ll").write_text(FLAT.replace("{", "noinline {", 1))
    (tmp_path / "flat.ll").write_text(FLAT)
    pool = Pool(environ={**os.environ, "PYTHONPATH": str(tmp_path)})
    answers = [pool.run("lower", file=str(tmp_path / name), arch="sm_100", options=BY_NVVM, nvvm=LIBRARY) for name in ("k.ll", "flat.ll")]
    pool.close()
    assert "Function flat is a kernel, so overriding noinline" in answers[0]["output"]
    assert not answers[1]["output"]


def test_r5_a_worker_that_dies_over_libnvvm_says_what_else_there_is(tmp_path: Path) -> None:
    """A library that ends the process, as libNVVM does over a module without a data layout."""
    (tmp_path / "k.c").write_text("__attribute__((constructor)) void die(void) { __builtin_trap(); }\n")
    subprocess.run(["cc", "-shared", "-o", "libnvvm.so.4", "k.c"], cwd=tmp_path, check=True)
    (tmp_path / "flat.ll").write_text(FLAT)
    pool = Pool()
    with pytest.raises(ToolKilledError) as caught:
        pool.run("lower", file=str(tmp_path / "flat.ll"), arch="sm_100", options=BY_NVVM, nvvm=str(tmp_path / "libnvvm.so.4"))
    pool.close()
    assert caught.value.hint == "GPU_LOWER=llvm lowers with LLVM"
