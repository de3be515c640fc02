"""The project that docs/loading.md shows, as files that are built and run."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from project import CUDA, Project

__all__ = ["HEADERS", "Page"]

HEADERS = next(Path(sys.prefix).glob("lib/python3*/site-packages")) / "nvidia/cu13/include"
PAGE = Path(__file__).parents[2] / "docs/loading.md"


class Page:
    """The page's project, built, and its pieces of Python for a program."""

    def __init__(self, root: Path, *, archs: str = '"sm_90", "compute_90"') -> None:
        pieces = re.findall(r"^```(python|cuda|cpp)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
        self.project = Project(root)
        for _, text in pieces:
            if named := re.match(r"// ([\w.]+)\n", text):
                self.project.write(named[1], text)
        self.listing, self.launching, sconstruct = (text for kind, text in pieces if kind == "python")
        self.project.write("untyped.cpp", pieces[-1][1])
        flags = f'{CUDA}env.Append(CXXFLAGS=["-Wall", "-Wextra", "-Werror"], CPPPATH={str(HEADERS)!r})\nnet ='
        for old, new in {"\nnet =": f"\n{flags}", '"sm_90", "compute_90"': archs}.items():
            assert sconstruct.count(old) == 1
            sconstruct = sconstruct.replace(old, new)
        self.project.write("SConstruct", sconstruct + 'env.SharedLibrary("untyped", ["untyped.cpp", code])\n')
        self.project.build("-j2")
