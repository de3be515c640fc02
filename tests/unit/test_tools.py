"""Finding tools on machines made for the test: nothing of the machine that runs it can be found by accident."""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from scons_gpu.errors import UsageError
from scons_gpu.toolchain import fingerprint
from scons_gpu.toolchain.facts import Facts
from scons_gpu.toolchain.process import run
from scons_gpu.toolchain.tools import Toolchain, discover

NAMES = ("ptxas", "nvlink", "fatbinary", "cuobjdump", "nvdisasm")
PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"


def write_tool(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return path


@dataclass
class Machine:
    """A root folder, an environment's prefix and environment variables: all that discovery may see."""

    base: Path
    environ: dict[str, str] = field(default_factory=dict)

    @property
    def root(self) -> Path:
        return self.base / "root"

    @property
    def wheels(self) -> Path:
        return self.base / "venv" / "lib" / PYTHON / "site-packages" / "nvidia"

    @property
    def calls(self) -> list[str]:
        log = self.base / "calls"
        return log.read_text().split() if log.exists() else []

    def toolkit(self, home: Path, version: str = "13.5.37", names: tuple[str, ...] = NAMES) -> Path:
        """A CUDA toolkit whose tools tell a version and leave a line for each call."""
        for name in names:
            write_tool(home / "bin" / name, f"echo {name} >> {self.base}/calls\necho 'Cuda compilation tools, release x, V{version}'\n")
        libdevice = home / "nvvm" / "libdevice" / "libdevice.10.bc"
        libdevice.parent.mkdir(parents=True, exist_ok=True)
        libdevice.write_text(f"libdevice of {home.name}")
        return home

    def find(self, **options: str) -> Toolchain:
        return discover(environ=self.environ, prefix=str(self.base / "venv"), root=str(self.root), facts=self.base / "facts", **options)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """llvmlite is this Python's own, on every machine, and takes half a second to look at: `here` does that once."""
    monkeypatch.setattr(fingerprint, "llvm", lambda **_: "22.1.0 0123")
    (tmp_path / "root").mkdir()
    return Machine(tmp_path)


def taken(found: Toolchain) -> dict[str, tuple[str, str]]:
    tools = {name: getattr(found, name) for name in (*NAMES, "libdevice")}
    return {name: (tool.origin, tool.path) for name, tool in tools.items() if tool is not None}


def origins(found: Toolchain) -> set[str]:
    return {origin for origin, _ in taken(found).values()}


def test_an_empty_machine_has_nothing_and_tells_where_it_looked(machine: Machine) -> None:
    found = machine.find()
    assert taken(found) == {}
    assert found.clang is None
    assert found.headers == ""
    assert "usr/local/cuda/bin (/usr/local/cuda: not there)" in found.where("ptxas")
    assert {look.what for look in found.looked} == {"ptxas", "cuobjdump", "nvdisasm", "libdevice", "clang", "headers"}
    assert all(look.result != "taken" for look in found.looked)


def test_t4_the_order_of_places(machine: Machine) -> None:
    """Each place is taken while it is the first, and the next when it has gone."""
    base = machine.base
    own = machine.toolkit(base / "own")
    places = [
        ("Python wheel", machine.toolkit(machine.wheels / "cu13")),
        ("CUDA_HOME", machine.toolkit(base / "home")),
        ("CUDA_PATH", machine.toolkit(base / "path")),
        ("PATH", machine.toolkit(base / "onpath")),
        ("/usr/local/cuda", machine.toolkit(machine.root / "usr/local/cuda")),
        ("distribution", machine.toolkit(machine.root / "usr/lib/nvidia-cuda-toolkit")),
        ("distribution", machine.toolkit(machine.root / "opt/cuda")),
    ]
    machine.environ = {"CUDA_HOME": str(base / "home"), "CUDA_PATH": str(base / "path"), "PATH": f"relative:{base / 'onpath' / 'bin'}"}
    assert origins(machine.find(cuda_path=str(own))) == {"GPU_CUDA_PATH"}
    for origin, home in places:
        found = machine.find()
        assert found.ptxas is not None
        assert (found.ptxas.origin, found.ptxas.path) == (origin, str(home / "bin" / "ptxas"))
        looks = [look for look in found.looked if look.what == "ptxas"]
        assert [look.result for look in looks].count("taken") == 1
        shutil.rmtree(home)
    assert machine.find().ptxas is None


def test_t4_the_variable_may_come_from_the_environment_and_the_argument_wins(machine: Machine) -> None:
    first, second = machine.toolkit(machine.base / "first"), machine.toolkit(machine.base / "second")
    machine.environ = {"GPU_CUDA_PATH": str(first)}
    assert taken(machine.find())["ptxas"] == ("GPU_CUDA_PATH", str(first / "bin" / "ptxas"))
    assert taken(machine.find(cuda_path=str(second)))["ptxas"] == ("GPU_CUDA_PATH", str(second / "bin" / "ptxas"))


def test_wheels_of_cuda_12_and_of_other_pythons_are_never_taken_for_tools(machine: Machine) -> None:
    machine.toolkit(machine.wheels / "cuda_nvcc", "12.9.86")
    machine.toolkit(machine.wheels / "cu12", "12.9.86")
    machine.toolkit(machine.base / "venv" / "lib" / "python2.7" / "site-packages" / "nvidia" / "cu13")
    assert taken(machine.find()) == {}


def test_one_release_from_one_place(machine: Machine) -> None:
    """A place with an assembler but no linker is not filled up from another: they may be of different releases."""
    machine.toolkit(machine.wheels / "cu13", names=("ptxas", "fatbinary"))
    machine.toolkit(machine.root / "usr/local/cuda", "13.0.88")
    found = machine.find()
    assert found.nvlink is None
    assert "no" in found.where("nvlink")
    assert {name: origin for name, (origin, _) in taken(found).items()} == {
        "ptxas": "Python wheel",
        "fatbinary": "Python wheel",
        "libdevice": "Python wheel",
        "cuobjdump": "/usr/local/cuda",  # readers of any release will do
        "nvdisasm": "/usr/local/cuda",
    }


def test_readers_come_from_the_place_of_the_others_even_if_an_earlier_one_has_them(machine: Machine) -> None:
    machine.toolkit(machine.wheels / "cu13", names=("cuobjdump", "nvdisasm"))
    machine.toolkit(machine.root / "usr/local/cuda")
    assert origins(machine.find()) == {"/usr/local/cuda"}


def test_without_an_assembler_the_packer_is_still_found(machine: Machine) -> None:
    machine.toolkit(machine.wheels / "cu13", names=("fatbinary",))
    found = machine.find()
    assert found.ptxas is None
    assert found.fatbinary is not None


def test_a_given_path_that_is_wrong_is_an_error_and_nothing_else_is_taken(machine: Machine) -> None:
    machine.toolkit(machine.wheels / "cu13")
    with pytest.raises(UsageError, match=r"GPU_CUDA_PATH=.*nowhere: there is neither a bin/ptxas"):
        machine.find(cuda_path=str(machine.base / "nowhere"))
    own = machine.toolkit(machine.base / "own")
    with pytest.raises(UsageError, match="the folder above bin is meant"):
        machine.find(cuda_path=str(own / "bin"))
    (own / "bin" / "ptxas").chmod(0o644)
    with pytest.raises(UsageError, match="that can be run"):
        machine.find(cuda_path=str(own))
    with pytest.raises(UsageError, match="GPU_CLANG=no-such-clang: there is no such program"):
        machine.find(clang="no-such-clang")
    with pytest.raises(UsageError, match=r"GPU_CUDA_HEADERS=.*: there is no include/cuda_runtime.h"):
        machine.find(cuda_headers=str(own))


def test_a_stale_cuda_home_is_passed_over_and_told(machine: Machine) -> None:
    machine.toolkit(machine.root / "usr/local/cuda")
    machine.environ = {"CUDA_HOME": "/no/such/cuda"}
    found = machine.find()
    assert origins(found) == {"/usr/local/cuda"}
    assert "/no/such/cuda/bin (CUDA_HOME: not there)" in found.where("ptxas")


def test_debians_layout(machine: Machine) -> None:
    for name in NAMES:
        write_tool(machine.root / "usr/bin" / name, "echo V12.4.131\n")
    libdevice = machine.root / "usr/lib/nvidia-cuda-toolkit/libdevice/libdevice.10.bc"
    libdevice.parent.mkdir(parents=True)
    libdevice.write_text("x")
    found = machine.find()
    assert origins(found) == {"distribution"}
    assert taken(found)["libdevice"][1] == str(libdevice)


# Wrappers.


def test_a_wrapper_on_path_is_followed_to_its_toolkit(machine: Machine) -> None:
    real = machine.toolkit(machine.base / "cuda-13.0", "13.0.88")
    wrapper = write_tool(machine.base / "bin" / "ptxas", f'exec {real}/bin/ptxas "$@"\n')
    machine.environ = {"PATH": str(wrapper.parent)}
    found = machine.find()
    assert found.ptxas is not None
    assert found.nvlink is not None
    assert found.ptxas.path == str(wrapper)  # it is what is run
    assert found.ptxas.version == "13.0.88"
    assert found.ptxas.identity == fingerprint.file_sha256(real / "bin" / "ptxas")  # and this is what that leads to
    assert found.nvlink.path == str(real / "bin" / "nvlink")
    assert found.libdevice is not None
    assert found.libdevice.path == str(real / "nvvm/libdevice/libdevice.10.bc")


def test_a_wrapper_beside_a_wrapper_is_preferred(machine: Machine) -> None:
    real = machine.toolkit(machine.base / "cuda")
    for name in ("ptxas", "nvlink"):
        write_tool(machine.base / "bin" / name, f'exec {real}/bin/{name} "$@"\n')
    machine.environ = {"PATH": str(machine.base / "bin")}
    assert taken(machine.find())["nvlink"][1] == str(machine.base / "bin" / "nvlink")


def test_a_wrapper_that_cannot_be_followed_is_asked_each_time(machine: Machine) -> None:
    """What it starts may be upgraded while the script stays the same."""
    hidden = machine.base / "version"
    hidden.write_text("V13.4.1")
    home = machine.toolkit(machine.base / "cuda")
    write_tool(home / "bin" / "ptxas", f'eval "exec cat {hidden}" # "$@"\n')
    first = machine.find(cuda_path=str(home)).ptxas
    hidden.write_text("V13.5.2")
    second = machine.find(cuda_path=str(home)).ptxas
    assert first is not None
    assert second is not None
    assert (first.version, second.version) == ("13.4.1", "13.5.2")
    assert first.identity != second.identity


# Fingerprints and their cache.


def test_t4_a_second_look_starts_nothing_and_hashes_nothing(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.toolkit(machine.wheels / "cu13")
    first = machine.find()
    assert sorted(machine.calls) == sorted(NAMES)

    def never(*_: object, **__: object) -> None:
        pytest.fail("the second look asked again")

    monkeypatch.setattr(fingerprint, "ask", never)
    monkeypatch.setattr(fingerprint, "file_sha256", never)
    assert machine.find() == first
    assert sorted(machine.calls) == sorted(NAMES)


def test_t8_the_real_tools_behind_counting_wrappers(machine: Machine, here: Toolchain) -> None:
    for name in NAMES:
        write_tool(machine.base / "cuda" / "bin" / name, f'echo {name} >> {machine.base}/calls\nexec {getattr(here, name).path} "$@"\n')
    for _ in range(2):
        found = machine.find(cuda_path=str(machine.base / "cuda"))
        assert {name: getattr(found, name).identity for name in NAMES} == {name: getattr(here, name).identity for name in NAMES}
    assert sorted(machine.calls) == sorted(NAMES)


def test_r2_an_upgrade_behind_the_same_path_is_seen(machine: Machine) -> None:
    real = machine.toolkit(machine.base / "cuda", "13.4.1")
    wrapper = write_tool(machine.base / "bin" / "ptxas", f'exec {real}/bin/ptxas "$@"\n')
    machine.environ = {"PATH": str(wrapper.parent)}
    before = machine.find().ptxas
    machine.toolkit(real, "13.5.2")
    after = machine.find().ptxas
    assert before is not None
    assert after is not None
    assert (before.version, after.version) == ("13.4.1", "13.5.2")
    assert before.identity != after.identity


def test_r2_same_size_and_time_but_another_file(machine: Machine) -> None:
    home = machine.toolkit(machine.base / "cuda", "13.5.1")
    tool = home / "bin" / "ptxas"
    before = machine.find(cuda_path=str(home)).ptxas
    old = tool.stat()
    other = tool.with_name("new")
    other.write_text(tool.read_text().replace("13.5.1", "13.5.2"))
    other.chmod(0o755)
    os.utime(other, ns=(old.st_atime_ns, old.st_mtime_ns))
    other.rename(tool)
    assert tool.stat().st_size == old.st_size
    after = machine.find(cuda_path=str(home)).ptxas
    assert before is not None
    assert after is not None
    assert after.version == "13.5.2"
    assert before.identity != after.identity


@pytest.mark.parametrize(
    "damage", ["", "{", "[]", "null", '{"format": 1}', '{"format": 1, "files": [], "found": {"version": "9", "sha256": "9"}}', "\xff"]
)
def test_t1_a_damaged_cache_is_a_miss(machine: Machine, damage: str) -> None:
    home = machine.toolkit(machine.base / "cuda")
    first = machine.find(cuda_path=str(home))
    entries = list((machine.base / "facts").rglob("*.json"))
    assert len(entries) == len(NAMES) + 1  # libdevice
    for entry in entries:
        entry.write_bytes(damage.encode("latin-1"))
    assert machine.find(cuda_path=str(home)) == first
    assert len(machine.calls) == 2 * len(NAMES)


def test_t1_a_cache_with_wrong_types_is_a_miss(machine: Machine) -> None:
    home = machine.toolkit(machine.base / "cuda")
    first = machine.find(cuda_path=str(home))
    for entry in (machine.base / "facts").rglob("*.json"):
        data = json.loads(entry.read_text())
        data["found"]["version"] = 13
        entry.write_text(json.dumps(data))
    assert machine.find(cuda_path=str(home)) == first


def test_a_cache_that_cannot_be_written_costs_time_only(machine: Machine) -> None:
    home = machine.toolkit(machine.base / "cuda")
    (machine.base / "facts").write_text("a file where a folder should be")
    assert taken(machine.find(cuda_path=str(home)))["ptxas"][0] == "GPU_CUDA_PATH"


def test_l12_a_version_that_cannot_be_read(machine: Machine) -> None:
    home = machine.toolkit(machine.base / "cuda")
    for script in ("echo no version here\n", "exit 1\n", "kill -9 $$\n"):
        write_tool(home / "bin" / "ptxas", script)
        found = machine.find(cuda_path=str(home)).ptxas
        assert found is not None
        assert found.version == ""
        assert len(found.identity) == 64
    (home / "bin" / "ptxas").write_bytes(b"\x7fELF but not really")
    found = machine.find(cuda_path=str(home)).ptxas
    assert found is not None
    assert found.version == ""


# Real tools.


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Toolchain:
    """The wheels of this environment, whatever else the machine has."""
    empty = tmp_path_factory.mktemp("root")
    return discover(environ={}, prefix=sys.prefix, root=str(empty), facts=empty / "facts")


def test_everything_comes_from_this_environment(here: Toolchain) -> None:
    for name in (*NAMES, "libdevice", "clang"):
        tool = getattr(here, name)
        assert tool is not None, name
        assert tool.origin == "Python wheel"
        assert Path(tool.path).is_relative_to(sys.prefix)
        assert len(tool.identity) == 64
    assert here.ptxas is not None
    assert here.nvlink is not None
    assert here.ptxas.version.startswith("13.")
    assert here.ptxas.version == here.nvlink.version
    assert here.headers_version == "12.9"
    assert here.llvm.startswith("22.")
    assert len(here.llvm.split()[1]) == 64


def test_t4_a_second_look_at_the_real_tools_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def look() -> Toolchain:
        return discover(environ={}, prefix=sys.prefix, root=str(tmp_path), facts=tmp_path / "facts")

    def never(*_: object, **__: object) -> None:
        pytest.fail("the second look asked again")

    first = look()
    monkeypatch.setattr("subprocess.Popen", never)
    monkeypatch.setattr(fingerprint, "file_sha256", never)
    assert look() == first


def test_an_earlier_release_elsewhere_does_not_change_what_is_found(here: Toolchain, machine: Machine) -> None:
    machine.toolkit(machine.root / "usr/local/cuda", "13.0.88")
    wrapper = write_tool(machine.base / "bin" / "ptxas", f'exec {machine.root}/usr/local/cuda/bin/ptxas "$@"\n')
    found = discover(environ={"PATH": str(wrapper.parent)}, prefix=sys.prefix, root=str(machine.root), facts=machine.base / "facts")
    for name in (*NAMES, "libdevice", "clang"):
        assert getattr(found, name) == getattr(here, name)
    assert "there, but an earlier one is taken" in found.where("ptxas")


def test_llvm_is_neither_loaded_nor_imported() -> None:
    code = "import sys, os; from pathlib import Path; from scons_gpu.toolchain.tools import discover; discover(environ={}, prefix=sys.argv[1], root=sys.argv[1], facts=Path(sys.argv[2])); assert not [m for m in sys.modules if m.startswith(('llvmlite', 'cuda'))]; assert 'llvmlite' not in open('/proc/self/maps').read()"
    done = run([sys.executable, "-c", code, "/nonexistent", "/nonexistent"], environ=dict(os.environ))
    assert (done.status, done.stderr) == (0, "")


# Clang.


def stub_clang(path: Path, version: str, *, works: bool = True) -> Path:
    ir = 'target triple = "nvptx64-nvidia-cuda"'
    answer = f"echo '{ir}'" if works else "echo \"error: unknown target CPU 'sm_80'\" >&2; exit 1"
    return write_tool(path, f'case "$1" in --version) echo "Debian clang version {version} (1)";; *) {answer};; esac\n')


def test_t4_the_order_of_clangs(machine: Machine) -> None:
    base = machine.base
    own = stub_clang(base / "own" / "my-clang", "22.1.0")
    places = [
        ("Python wheel", stub_clang(base / "venv" / "bin" / "clang-22", "22.1.8")),
        ("PATH", stub_clang(base / "a" / "clang-22", "22.1.1")),
        ("PATH", stub_clang(base / "a" / "clang", "21.1.0")),
        ("distribution", stub_clang(machine.root / "usr/lib/llvm-22/bin/clang", "22.1.2")),
    ]
    machine.environ = {"PATH": f"{base / 'a'}:{base / 'own'}"}
    for wanted in (str(own), "my-clang"):
        found = machine.find(clang=wanted).clang
        assert found is not None
        assert (found.path, found.origin, found.version) == (str(own), "GPU_CLANG", "22.1.0")
    for origin, path in places:
        found = machine.find().clang
        assert found is not None
        assert (found.path, found.origin) == (str(path), origin)
        path.unlink()
    assert machine.find().clang is None


def test_a_clang_that_will_not_do_is_passed_over_with_its_reason(machine: Machine) -> None:
    old = stub_clang(machine.base / "venv" / "bin" / "clang-22", "19.1.7")
    deaf = stub_clang(machine.base / "a" / "clang-22", "22.1.1", works=False)
    good = stub_clang(machine.base / "a" / "clang", "21.1.0")
    machine.environ = {"PATH": str(good.parent)}
    found = machine.find()
    assert found.clang is not None
    assert found.clang.path == str(good)
    assert f"{old} (Python wheel: version 19.1.7: the oldest that can be used is 20)" in found.where("clang")
    assert f"{deaf} (PATH: cannot compile CUDA for NVPTX: error: unknown target CPU 'sm_80')" in found.where("clang")


def test_a_given_clang_that_will_not_do_is_an_error(machine: Machine) -> None:
    stub_clang(machine.base / "venv" / "bin" / "clang-22", "22.1.8")
    with pytest.raises(UsageError, match=r"GPU_CLANG=.*old: version 19.1.7"):
        machine.find(clang=str(stub_clang(machine.base / "old", "19.1.7")))
    with pytest.raises(UsageError, match=r"GPU_CLANG=.*deaf: cannot compile CUDA for NVPTX"):
        machine.find(clang=str(stub_clang(machine.base / "deaf", "22.1.7", works=False)))
    with pytest.raises(UsageError, match="its version cannot be read"):
        machine.find(clang=str(stub_clang(machine.base / "mute", "?")))


def test_clangs_identity_holds_the_libraries_it_loads(here: Toolchain, machine: Machine) -> None:
    """The program is a stub: an upgrade of libLLVM alone must be seen."""
    assert here.clang is not None
    real = Path(here.clang.path)
    copy = machine.base / "llvm" / "bin" / real.name
    copy.parent.mkdir(parents=True)
    shutil.copy2(real, copy)
    lib = copy.parent.parent / "lib"
    shutil.copytree(
        real.parent.parent / "lib",
        lib,
        ignore=lambda _, names: [name for name in names if "python" in name or name == "cmake"],
        copy_function=os.symlink,
    )
    facts = Facts(machine.base / "facts")
    first = fingerprint.clang(str(copy), environ={}, facts=facts)
    assert first.sha256 == here.clang.identity
    library = next(path for path in lib.glob("libLLVM.so.*"))
    target = library.resolve()
    library.unlink()
    shutil.copy2(target, library)
    with library.open("ab") as file:
        file.write(b"\0")
    second = fingerprint.clang(str(copy), environ={}, facts=facts)
    assert second.version == first.version
    assert second.sha256 != first.sha256


def test_headers_are_looked_for_in_wheels_then_in_toolkits(machine: Machine) -> None:
    for home, version in ((machine.wheels / "cu13", 13050), (machine.root / "usr/local/cuda", 12040)):
        (home / "include").mkdir(parents=True)
        (home / "include" / "cuda.h").write_text(f"#define CUDA_VERSION {version}\n")
        (home / "include" / "cuda_runtime.h").write_text("")
    found = machine.find()
    assert found.headers == str(machine.root / "usr/local/cuda")
    assert (found.headers_version, found.headers_identity) == ("12.4", "cuda-12.4")
    assert "headers of CUDA 13.5, of which clang 22 reads only a part" in found.where("headers")
    assert "no nvidia-cuda-runtime-cu12, nvidia-cuda-nvcc-cu12, nvidia-cuda-cccl-cu12" in found.where("headers")
    machine.environ = {"GPU_CUDA_HEADERS": str(machine.wheels / "cu13")}
    assert machine.find().headers == str(machine.wheels / "cu13")
    assert machine.find(cuda_headers=str(machine.root / "usr/local/cuda")).headers == str(machine.root / "usr/local/cuda")
