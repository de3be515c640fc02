from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import scons_gpu
from scons_gpu.errors import MissingSymbolError, ToolKilledError, ToolMissingError
from scons_gpu.lower.options import LowerOptions
from scons_gpu.workers import pool as pools
from scons_gpu.workers.pool import Pool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LIBDEVICE = str(next(Path(sys.prefix).glob("lib/python3*/site-packages/nvidia/cu13/nvvm/libdevice/libdevice.10.bc")))
HEAD = 'target triple = "nvptx64-nvidia-cuda"\n'
ROOT = """
define ptx_kernel void @root(ptr addrspace(1) %x) {
  %v = load float, ptr addrspace(1) %x
  %s = call float @__nv_sinf(float %v)
  store float %s, ptr addrspace(1) %x
  ret void
}
declare float @__nv_sinf(float)
"""


@pytest.fixture
def pool() -> Iterator[Pool]:
    made = Pool()
    yield made
    made.close()


@pytest.fixture
def unit(tmp_path: Path) -> str:
    (tmp_path / "root.ll").write_text(HEAD + ROOT)
    return str(tmp_path / "root.ll")


@pytest.fixture
def slow(tmp_path: Path) -> str:
    """A unit that LLVM works on for many seconds."""
    lines = [f"  %v{i} = call float @__nv_powf(float %v{i - 1}, float %v{max(0, i - 7)})" for i in range(1, 600)]
    body = "\n".join(["  %v0 = load float, ptr addrspace(1) %x", *lines, "  store float %v599, ptr addrspace(1) %x", "  ret void"])
    head = "define ptx_kernel void @slow(ptr addrspace(1) %x) {"
    (tmp_path / "slow.ll").write_text(f"{HEAD}{head}\n{body}\n}}\ndeclare float @__nv_powf(float, float)\n")
    return str(tmp_path / "slow.ll")


def ptx(pool: Pool, file: str) -> str:
    return str(pool.run("lower", file=file, arch="sm_90", options=LowerOptions(ptx=78), libdevice=LIBDEVICE)["ptx"])


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def busy(process: int) -> bool:
    """Whether it has worked for longer than it takes to get ready."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return int(fields[11]) >= 0.7 * os.sysconf("SC_CLK_TCK")


def only(pool: Pool) -> int:
    (worker,) = pool._all
    return worker.pid


def test_t5_importing_starts_nothing_and_loads_no_llvm() -> None:
    code = (
        "import sys, threading, scons_gpu.workers.pool, scons_gpu.lower.options\n"
        "pool = scons_gpu.workers.pool.Pool()\n"
        "assert not any(name.startswith('llvmlite') for name in sys.modules), 'llvm'\n"
        "assert pool.started == 0 and threading.active_count() == 1"
    )
    path = str(Path(scons_gpu.__file__).parent.parent)
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_one_worker_serves_one_caller(pool: Pool, unit: str) -> None:
    answers = [pool.run("lower", file=unit, arch="sm_90", options={"ptx": 78}, libdevice=LIBDEVICE) for _ in range(3)]
    assert len({answer["worker"] for answer in answers}) == pool.started == 1
    assert all(answer["cpu"] > 0 and answer["peak_kib"] > 10_000 for answer in answers)


def test_r7_forty_calls_at_once_give_equal_bytes(pool: Pool, unit: str) -> None:
    with ThreadPoolExecutor(2) as threads:
        texts = list(threads.map(lambda _: ptx(pool, unit), range(40)))
    assert len(set(texts)) == 1
    assert pool.started == 2


def test_t10_two_pools_in_other_environments_give_equal_bytes(unit: str) -> None:
    texts = []
    for more in ({"PYTHONHASHSEED": "1", "TZ": "Asia/Tokyo", "LC_ALL": "C"}, {"PYTHONHASHSEED": "2", "HOME": "/nowhere"}):
        made = Pool(environ={**os.environ, **more})
        texts.append(ptx(made, unit))
        made.close()
    assert texts[0] == texts[1]


def test_what_a_task_raises_is_raised_here_and_the_worker_lives(pool: Pool, unit: str) -> None:
    with pytest.raises(MissingSymbolError, match="__nv_sinf") as error:
        pool.run("lower", file=unit, arch="sm_90", options=LowerOptions(ptx=78), searched="looked nowhere")
    assert error.value.hint == "looked nowhere"
    assert ".entry root" in ptx(pool, unit)
    assert pool.started == 1


def test_a_bug_in_a_task_is_told_with_its_place_and_the_worker_lives(pool: Pool, unit: str) -> None:
    with pytest.raises(Exception, match="this is a bug") as error:
        pool.run("lower", arch="sm_90", options=LowerOptions(ptx=78), nonsense=1)
    assert "nonsense" in str(error.value)
    assert ".entry root" in ptx(pool, unit)
    assert pool.started == 1


def test_r5_a_killed_worker_fails_its_task_alone(pool: Pool, unit: str, slow: str) -> None:
    with ThreadPoolExecutor(1) as threads:
        task = threads.submit(ptx, pool, slow)
        until(lambda: pool.started == 1)
        until(lambda: busy(only(pool)))
        os.kill(only(pool), signal.SIGKILL)
        with pytest.raises(ToolKilledError, match=r"was killed by SIGKILL at \d\d+ MiB"):
            task.result()
    assert ".entry root" in ptx(pool, unit)
    assert pool.started == 2


def test_a_worker_that_died_idle_fails_no_task(pool: Pool, unit: str) -> None:
    ptx(pool, unit)
    (worker,) = pool._all
    os.kill(worker.pid, signal.SIGTERM)
    until(lambda: not worker.alive())
    assert ".entry root" in ptx(pool, unit)
    assert pool.started == 2


def test_r5_ctrl_c_does_not_end_workers(pool: Pool, unit: str) -> None:
    ptx(pool, unit)
    os.kill(only(pool), signal.SIGINT)
    assert ".entry root" in ptx(pool, unit)
    assert pool.started == 1


def test_r5_ctrl_c_does_not_end_workers_that_are_about_to_start(pool: Pool, unit: str) -> None:
    pool.prepare()
    os.kill(only(pool), signal.SIGINT)
    assert ".entry root" in ptx(pool, unit)
    assert pool.started == 1


LEAVES = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from scons_gpu.workers.pool import Pool
pool = Pool()
pool.prepare()
(worker,) = pool._all
os.kill(worker.pid, signal.SIGSTOP)  # it takes its time to end
worker._wait = lambda wait=worker._wait: (os.kill(os.getpid(), signal.SIGINT), wait())
"""


def test_r5_ctrl_c_while_workers_are_ended_is_too_late() -> None:
    path = str(Path(scons_gpu.__file__).parent.parent)
    done = subprocess.run([sys.executable, "-c", LEAVES, path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_r5_close_ends_busy_workers_and_the_pool_can_go_on(pool: Pool, unit: str, slow: str) -> None:
    with ThreadPoolExecutor(1) as threads:
        task = threads.submit(ptx, pool, slow)
        until(lambda: pool.started == 1)
        worker = only(pool)
        until(lambda: busy(worker))
        pool.close()
        assert not alive(worker)
        with pytest.raises(ToolKilledError, match="ended before it was done"):
            task.result()
    assert ".entry root" in ptx(pool, unit)


def test_close_kills_a_worker_that_was_stopped(pool: Pool, unit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "GRACE", 0.1)
    ptx(pool, unit)
    worker = only(pool)
    os.kill(worker, signal.SIGSTOP)
    pool.close()
    assert not alive(worker)


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), 9)", "sys.exit()", "os._exit(1)"])
def test_r5_workers_end_with_their_parent_even_busy_ones(end: str, slow: str) -> None:
    code = f"""
import os, sys, threading, time
from scons_gpu.workers.pool import Pool
pool = Pool()
idle = pool.run("lower", file={slow.replace("slow", "small")!r}, arch="sm_90", options={{"ptx": 78}})["worker"]
arguments = dict(file={slow!r}, arch="sm_90", options={{"ptx": 78}}, libdevice={LIBDEVICE!r})
threading.Thread(target=pool.run, args=("lower",), kwargs=arguments, daemon=True).start()
threading.Thread(target=pool.run, args=("lower",), kwargs=arguments, daemon=True).start()
while pool.started < 2: time.sleep(0.01)
time.sleep(1)
print(*[worker.pid for worker in pool._all], flush=True)
{end}
"""
    Path(slow.replace("slow", "small")).write_text(HEAD + "define ptx_kernel void @k() {\n  ret void\n}\n")
    path = str(Path(scons_gpu.__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, text=True, check=False
    )
    workers = [int(word) for word in done.stdout.split()]
    assert len(workers) == 2
    until(lambda: not any(alive(worker) for worker in workers))


def test_an_interrupted_call_does_not_leave_its_answer_to_the_next(pool: Pool, unit: str, slow: str) -> None:
    ptx(pool, unit)
    main = threading.get_ident()
    old = signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    try:
        threading.Timer(0.5, lambda: signal.pthread_kill(main, signal.SIGALRM)).start()
        with pytest.raises(KeyboardInterrupt):
            ptx(pool, slow)
    finally:
        signal.signal(signal.SIGALRM, old)
    assert ".entry root" in ptx(pool, unit)
    assert pool.started == 2


def test_a_worker_that_grew_is_let_go(pool: Pool, unit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "RECYCLE_KIB", 1)
    assert ptx(pool, unit) == ptx(pool, unit)
    assert pool.started == 2
    assert not pool._all


def test_prepare_starts_the_first_worker_once(pool: Pool, unit: str) -> None:
    pool.prepare()
    pool.prepare()
    ptx(pool, unit)
    assert pool.started == 1


def test_a_projects_own_modules_do_not_get_in_the_way(pool: Pool, unit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("select", "resource", "json", "llvmlite", "scons_gpu"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong module')\n")
    monkeypatch.chdir(tmp_path)
    assert ".entry root" in ptx(pool, unit)


def test_a_worker_without_llvm_says_so(tmp_path: Path, unit: str) -> None:
    (tmp_path / "llvmlite").mkdir()
    (tmp_path / "llvmlite" / "__init__.py").write_text("raise ImportError('libllvmlite.so is gone')\n")
    made = Pool(environ={**os.environ, "PYTHONPATH": str(tmp_path)})
    with pytest.raises(ToolMissingError, match=r"libllvmlite\.so is gone"):
        ptx(made, unit)
    made.close()


def test_this_very_package_runs_in_the_worker(tmp_path: Path, unit: str) -> None:
    (tmp_path / "other" / "scons_gpu").mkdir(parents=True)
    (tmp_path / "other" / "scons_gpu" / "__init__.py").write_text("raise SystemExit('another scons_gpu')\n")
    made = Pool(environ={**os.environ, "PYTHONPATH": str(tmp_path / "other")})
    assert ".entry root" in ptx(made, unit)
    made.close()
