"""A candidate's PTX as a program of its own, to be measured before there is an image: the variables of others get a place in it."""

from __future__ import annotations

import re

from scons_gpu.source import ptx_reader

__all__ = ["complete"]

_OPEN = re.compile(r"\[\s*\]")


def complete(text: str) -> str:
    """PTX that defines each variable which it leaves to other objects, without a value; dynamic shared memory stays as it is.

    Nobody runs it. Registers, spills and code are those of the kernel in its image, whoever assembles: a driver makes no objects that lack
    something, and those that nvJitLink makes may not name constants. Raises LinkError for PTX that does not read.
    """
    module = ptx_reader.read(text, label="candidate")
    variables = [each for each in module.statements if each.kind == "variable" and each.space != "shared"] if module else []
    known = {name for each in variables if each.linkage != "extern" for name in each.names}
    for each in variables:
        if each.linkage == "extern":
            text = text.replace(each.text, "" if known.intersection(each.names) else _definition(each.text), 1)
            known.update(each.names)
    return text


def _definition(declaration: str) -> str:
    """A size that is left open is somebody else's to know, and changes no code."""
    return _OPEN.sub("[1]", declaration.replace(".extern", ".visible", 1), count=1)
