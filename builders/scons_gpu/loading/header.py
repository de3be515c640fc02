"""Typed launches of a program's kernels, as a C++ header over `include/scons_gpu.hpp`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scons_gpu.loading.embed import HEADER, identifier, literal
from scons_gpu.loading.parameters import parameters
from scons_gpu.tune.naming import names_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from scons_gpu.link.manifest import Kernel, Manifest

__all__ = ["header"]

# Working draft of C++23, [lex.key] and [lex.digraph].
_WORDS = frozenset(
    """alignas alignof and and_eq asm auto bitand bitor bool break case catch char char16_t char32_t char8_t class co_await co_return
    co_yield compl concept const const_cast consteval constexpr constinit continue decltype default delete do double dynamic_cast else
    enum explicit export extern false float for friend goto if inline int long mutable namespace new noexcept not not_eq nullptr operator
    or or_eq private protected public register reinterpret_cast requires return short signed sizeof static static_assert static_cast
    struct switch template this thread_local throw true try typedef typeid typename union unsigned using virtual void volatile wchar_t
    while xor xor_eq""".split()  # noqa: SIM905 - a word a line would be a page of them
)
_TAKEN = frozenset({"program"})
"""What the header itself calls so, beside the modules."""


@dataclass(frozen=True)
class _Wrapper:
    """One kernel as a function; without types, why there is none."""

    symbol: str
    kernel: Kernel
    name: str
    types: tuple[str, ...] | str


def header(manifest: Manifest) -> str:
    """The text: a namespace for the program, one in it for each module, and in that a function for each kernel that tells its types."""
    top = identifier(manifest.program)
    spaces = _namespaces([name for name, module in manifest.modules.items() if module.kernels])
    lines = [
        f"// Written by scons-gpu: the kernels of the program {top}, typed.",
        "#pragma once",
        f"#include <{HEADER}>",
        "",
        f"SCONS_GPU_EMBEDDED({top});",
        "",
        f'namespace {_spoken(top)} __attribute__((visibility("hidden"))) {{',
        "",
        f"inline ::scons_gpu::Program program() {{ return ::scons_gpu::Program(::scons_gpu_{top}); }}",
    ]
    for name, space in spaces.items():
        lines += [
            "",
            f"namespace {space} {{",
            *_module(name, manifest.modules[name].kernels, program=_spoken(top)),
            "",
            f"}}  // namespace {space}",
        ]
    return "\n".join([*lines, "", f"}}  // namespace {_spoken(top)}", ""])


def _namespaces(modules: Iterable[str]) -> dict[str, str]:
    """Module → its namespace. `then.2` and `then_2` would have one: both of them then say what the sign was."""
    names = sorted(modules)
    times = Counter(map(_spoken, names))
    return {name: _spoken(name) if times[_spoken(name)] == 1 else "".join(_sign(char) for char in name) for name in names}


def _sign(char: str) -> str:
    return char if char == identifier(char) and char != "_" else f"_{ord(char):x}_"


def _spoken(name: str) -> str:
    name = identifier(name)
    if name in _WORDS or name in _TAKEN:
        return f"{name}_"
    return f"_{name}" if name[:1].isdigit() else name


def _module(name: str, kernels: Mapping[str, Kernel], *, program: str) -> list[str]:
    found = _wrappers(kernels)
    return [line for wrapper in found for line in _function(wrapper, module=name, program=program)]


def _wrappers(kernels: Mapping[str, Kernel]) -> list[_Wrapper]:
    """By readable name. Those of one name and one list of types, as instances of one template may be, are called by their symbols."""
    made = [
        _Wrapper(symbol, kernel, _spoken(_plain(symbol, kernel)), parameters(kernel.readable, symbol=symbol))
        for symbol, kernel in sorted(kernels.items(), key=lambda item: (item[1].readable, item[0]))
    ]
    times = Counter((each.name, each.types) for each in made)
    return [
        each if times[each.name, each.types] == 1 else _Wrapper(each.symbol, each.kernel, f"kernel{identifier(each.symbol)}", each.types)
        for each in made
    ]


def _plain(symbol: str, kernel: Kernel) -> str:
    """`ns::softmax<256>(float*)` → `ns_softmax_256`."""
    return "_".join(part for part in identifier(names_of(symbol, kernel.readable)[2]).split("_") if part)


def _function(wrapper: _Wrapper, *, module: str, program: str) -> Sequence[str]:
    said = f"{_comment(wrapper.kernel.readable)} of {_comment(wrapper.kernel.source)}"
    if isinstance(wrapper.types, str):
        asked = f"program().kernel({literal(module)}, {literal(wrapper.symbol)}).launch(how, ...)"
        return ["", f"// {said} has no function here: {_comment(wrapper.types)}. {asked}"]
    given = [f"a{place}" for place in range(len(wrapper.types))]
    typed = ", ".join(["const ::scons_gpu::Launch& how", *(f"{kind} {name}" for kind, name in zip(wrapper.types, given, strict=True))])
    return [
        "",
        f"// {said}",
        f"inline void {wrapper.name}({typed}) {{",
        f"  static const ::scons_gpu::Kernel kernel = ::{program}::program().kernel({literal(module)}, {literal(wrapper.symbol)});",
        f"  kernel.launch({', '.join(['how', *given])});",
        "}",
    ]


def _comment(text: str) -> str:
    """On one line, which does not end in what would make the next one part of it."""
    return " ".join(text.replace("\\", "/").split())
