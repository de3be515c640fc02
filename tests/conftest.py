"""What every test may ask for."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).parent / "e2e"))

from project import Project, device
from toolkits import Toolkit

from scons_gpu.toolchain import tools

if TYPE_CHECKING:
    from driver_stub import DriverStub
    from provider_parts import Parts

    from scons_gpu.assemble.provider import Provider
    from scons_gpu.toolchain.tools import Toolchain


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """An empty folder to write sources and a SConstruct into."""
    return Project(tmp_path / "project")


@pytest.fixture(scope="session")
def toolchain(tmp_path_factory: pytest.TempPathFactory) -> Toolchain:
    """The tools that this environment has. Tests do without nothing: a missing tool is an error, not a skip."""
    found = tools.discover(environ=dict(os.environ), prefix=sys.prefix, facts=tmp_path_factory.mktemp("facts"))
    missing = [name for name in ("ptxas", "nvlink", "fatbinary", "clang", "libdevice") if getattr(found, name) is None]
    if missing:
        pytest.fail(f"no {', '.join(missing)} here: install the extra 'all'")
    return found


@pytest.fixture
def toolkit(toolchain: Toolchain, tmp_path: Path) -> Toolkit:
    """The real tools behind wrappers, which count their calls or fail when told to."""
    return Toolkit(toolchain, tmp_path / "toolkit")


@pytest.fixture(scope="session")
def stub() -> DriverStub:
    """A CUDA driver for one device of sm_90."""
    from driver_stub import DriverStub  # noqa: PLC0415 - loads cuda.bindings
    from provider_parts import tool  # noqa: PLC0415 - the same

    from scons_gpu.assemble import nvjitlink_library  # noqa: PLC0415 - the same

    return DriverStub(nvjitlink_library.load(tool("nvjitlink").path))


@pytest.fixture(scope="session")
def every(tmp_path_factory: pytest.TempPathFactory, stub: DriverStub) -> dict[str, Provider]:
    """Every provider that runs without a GPU, by name."""
    from provider_parts import every_provider  # noqa: PLC0415 - as in `stub`

    return every_provider(tmp_path_factory.mktemp("facts"), stub)


@pytest.fixture
def parts(tmp_path: Path, every: dict[str, Provider]) -> Parts:
    """Inputs of links, made by ptxas."""
    from provider_parts import Parts  # noqa: PLC0415 - as in `stub`

    return Parts(folder=tmp_path, objects=every["ptxas"])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # A nvJitLink that failed is not called again in its process.
    items.sort(key=lambda item: item.get_closest_marker("spoils") is not None)
    if not any("gpu" in item.keywords for item in items):
        return
    reason = device()
    if reason:
        for item in items:
            if "gpu" in item.keywords:
                item.add_marker(pytest.mark.skip(reason=reason))
