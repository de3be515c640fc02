from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from cuda.bindings import driver
from driver_stub import DriverStub
from provider_parts import PLAIN, SM_90, kernel, tool

from scons_gpu.assemble.defer import defer
from scons_gpu.assemble.driver import DriverProvider
from scons_gpu.assemble.provider import AssembleOptions, Capabilities
from scons_gpu.errors import (
    PtxSyntaxError,
    ToolMissingError,
    UnsupportedArchError,
    UsageError,
)


def test_without_a_driver_it_says_so(stub: DriverStub) -> None:
    def nowhere(_: int) -> tuple[Any]:
        msg = "Failed to dlopen libcuda.so.1"
        raise RuntimeError(msg)

    class Nowhere(DriverStub):
        cuInit = staticmethod(nowhere)  # noqa: N815 - the driver's name

    cases = [
        (Nowhere(stub.library), "there is no CUDA driver on this machine: libcuda.so.1 was not found"),
        (replace(stub, devices=0), "there is a CUDA driver on this machine, and no device"),
        (replace(stub, init=driver.CUresult.CUDA_ERROR_NO_DEVICE), "cuInit of the CUDA driver says CUDA_ERROR_NO_DEVICE"),
    ]
    for api, said in cases:
        provider = DriverProvider(driver=tool("driver"), api=api)
        assert provider.capabilities == Capabilities(compile=False, relocatable=False, link=False, clones_functions=False)
        assert provider.lacking == said
        with pytest.raises(ToolMissingError, match=said):
            provider.compile(kernel("a"), target=SM_90, options=PLAIN)
        with pytest.raises(UsageError, match="driver cannot link"):
            defer(provider)


def test_making_one_asks_the_driver_nothing(stub: DriverStub) -> None:
    api = replace(stub, calls=[])
    provider = DriverProvider(driver=tool("driver"), api=api)
    assert api.calls == []
    assert provider.arch == "sm_90"
    assert api.calls == ["cuInit"]


def test_the_driver_links_for_its_gpu_alone(stub: DriverStub) -> None:
    provider = DriverProvider(driver=tool("driver"), api=replace(stub, major=8, minor=6))
    with pytest.raises(UnsupportedArchError, match="links for the GPU of this machine, sm_86, and not for sm_90"):
        provider.compile(kernel("a"), target=SM_90, options=PLAIN)
    with pytest.raises(ToolMissingError, match="makes no relocatable objects"):
        provider.compile_relocatable(kernel("a"), target=SM_90, options=PLAIN)


def test_the_driver_is_left_as_it_was(stub: DriverStub) -> None:
    for text in (kernel("a"), "no PTX"):
        api = replace(stub, calls=[])
        provider = DriverProvider(driver=tool("driver"), api=api)
        if text == "no PTX":
            with pytest.raises(PtxSyntaxError):
                provider.compile(text, target=SM_90, options=PLAIN)
        else:
            provider.compile(text, target=SM_90, options=PLAIN)
        assert api.calls == ["cuInit", "retain", "push", "create", "destroy", "pop", "release"]


def test_options_reach_the_driver(stub: DriverStub) -> None:
    api = replace(stub, calls=[])
    options = AssembleOptions(opt=0, lineinfo=True, debug=True, maxrregcount=40)
    provider = DriverProvider(driver=tool("driver"), api=api)
    provider.compile(kernel("a"), target=SM_90, options=options)
    given = {name: value for name, value in api.options.items() if "LOG_BUFFER" not in name}
    assert given == {"LOG_VERBOSE": 1, "MAX_REGISTERS": 40, "OPTIMIZATION_LEVEL": 0, "GENERATE_DEBUG_INFO": 1, "GENERATE_LINE_INFO": 1}
    assert provider.spelling(target=SM_90, options=options, relocatable=False) == (
        "CU_JIT_TARGET=sm_90",
        "CU_JIT_MAX_REGISTERS=40",
        "CU_JIT_OPTIMIZATION_LEVEL=0",
        "CU_JIT_GENERATE_DEBUG_INFO=1",
        "CU_JIT_GENERATE_LINE_INFO=1",
    )
