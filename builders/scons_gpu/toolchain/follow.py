"""What a tool's path really leads to: symbolic links, and shell scripts that `exec` the real one (a `ptxas` on PATH is often two lines)."""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Followed", "follow"]

_SCRIPT_LIMIT = 65536
_DEPTH = 8
_ASSIGNMENT = re.compile(r"\s*(?:export\s+)?(\w+)=(.*)")
# The usual ways to write "the folder of this script".
_HERE = re.compile(
    r"""\$\(\s*cd\s+"?\$\(\s*dirname\s+(?:--\s+)?"?\$(?:0|\{BASH_SOURCE(?:\[0\])?\})"?\s*\)"?\s*&&\s*pwd(?:\s+-P)?\s*\)"""
    r"""|\$\(\s*dirname\s+(?:--\s+)?"?\$(?:0|\{BASH_SOURCE(?:\[0\])?\})"?\s*\)"""
    r"""|\$\{0%/\*\}"""
)


@dataclass(frozen=True)
class Followed:
    """The chain from the path that was found to the binary. `real` is empty where a script could not be followed."""

    files: tuple[str, ...]
    real: str


def follow(path: str) -> Followed:
    """Follows `path`; each file of the chain decides what is run, so all of them are returned."""
    files: list[str] = []
    current = path
    while len(files) < _DEPTH:
        files.append(current)
        script = _script(current)
        if script is None:
            return Followed(files=tuple(files), real=os.path.realpath(current))
        if _does_it_itself(script):
            return Followed(files=tuple(files), real=current)
        following = _executed(script, current)
        if not following or following in files:
            break
        current = following
    return Followed(files=tuple(files), real="")


def _script(path: str) -> str | None:
    """The text of a script; None for a binary, or what cannot be read."""
    try:
        with Path(path).open("rb") as file:
            if file.read(2) != b"#!":
                return None
            return file.read(_SCRIPT_LIMIT).decode(errors="replace")
    except OSError:
        return None


def _does_it_itself(script: str) -> bool:
    """A shell script that hands its arguments to nobody leads nowhere else."""
    return re.match(r".*\bsh\b", script) is not None and re.search(r"\$[@*1]|\$\{[@*1]|\bexec\b", script) is None


def _executed(script: str, path: str) -> str:
    """The program that the script hands its arguments to, or nothing if that cannot be told."""
    here = str(Path(path).resolve().parent)
    variables: dict[str, str] = {}
    found = ""
    for line in script.splitlines():
        text = _expand(line, here, variables)
        assignment = _ASSIGNMENT.fullmatch(text)
        if assignment:
            variables[assignment[1]] = assignment[2].strip().strip("\"'")
        elif "$@" in text or "$*" in text:
            found = _program(text, Path(path).name) or found
    return found


def _expand(line: str, here: str, variables: dict[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        return variables.get(match[1] or match[2], match[0])

    return re.sub(r"\$(?:(\w+)|\{(\w+)\})", value, _HERE.sub(lambda _: here, line))


def _program(text: str, name: str) -> str:
    """The word that is a path to an existing file: one of the tool's own name, else the first."""
    try:
        words = shlex.split(text, comments=True)
    except ValueError:
        return ""
    paths = [os.path.normpath(word) for word in words if word.startswith("/") and Path(word).is_file() and os.access(word, os.X_OK)]
    return next((word for word in paths if Path(word).name == name), paths[0] if paths else "")
