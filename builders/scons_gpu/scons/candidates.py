"""What a user says of kernels with candidates: read, checked, and turned into sources and options of their own."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from scons_gpu.errors import UsageError
from scons_gpu.tune.launch import read_launch
from scons_gpu.tune.model import pairs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from scons_gpu.scons.modules import Source
    from scons_gpu.scons.settings import Settings
    from scons_gpu.tune.model import Pairs

__all__ = ["Candidate", "Candidates", "read"]

OPTIONS = ("GPU_OPT", "GPU_MAXRREGCOUNT", "GPU_PTXASFLAGS", "GPU_FAST_MATH", "GPU_FTZ", "GPU_CLANGFLAGS")
"""Variables that one candidate may have of its own. All other names are defines."""
_LONG = ("source", "keys", "values", "launch")


@dataclass(frozen=True)
class Candidate:
    """One set of values."""

    values: dict[str, str]
    source: Source
    """The source with the values' defines and front-end flags."""
    settings: Settings
    needs: tuple[str, ...]
    launch: dict[str, Any] | None


@dataclass(frozen=True)
class Candidates:
    """A kernel, or those that a pattern names, of one source."""

    pattern: str
    source: Source
    keys: dict[str, str]
    candidates: tuple[Candidate, ...]

    def signature(self) -> list[Any]:
        """All that the user said, as JSON can hold it."""
        each = [[one.values, list(one.needs), one.launch, one.source.variant] for one in self.candidates]
        return [self.pattern, self.source.name, self.keys, each]


def read(  # noqa: PLR0913 - what a module is made of
    given: Any,
    *,
    module: str,
    sources: Sequence[Source],
    own: Settings,
    resettle: Callable[[Mapping[str, Any]], Settings],
    refront: Callable[[Source, Mapping[str, Any]], Any],
) -> tuple[Candidates, ...]:
    """A module's candidates. `resettle` and `refront` give settings and front-end options with some variables set otherwise.

    Raises UsageError that names module and kernel for what cannot be meant.
    """
    if not given:
        return ()
    if not hasattr(given, "items"):
        msg = f"module {module}: candidates are a dictionary, kernel → list of values"
        raise UsageError(msg, hint='as in candidates={"gemm": [{"TILE": 64}, {"TILE": 128}]}')
    found = []
    for pattern, said in given.items():
        at = f"module {module}: candidates of {pattern}"
        long = dict(said) if hasattr(said, "items") else {"values": said}
        if strange := sorted(map(str, set(long) - set(_LONG))):
            msg = f"{at}: {strange[0]} means nothing"
            raise UsageError(msg, hint=f"they take {', '.join(_LONG)}; a plain list is the values")
        source = _source(long.get("source", ""), sources, at=at)
        keys = dict(_pairs(long.get("keys") or {}, at=f"{at}: keys"))
        sets = long.get("values")
        if not isinstance(sets, (list, tuple)) or not sets or not all(hasattr(each, "items") for each in sets):
            msg = f"{at}: values are a list of dictionaries, one for each candidate"
            raise UsageError(msg, hint='as in [{"TILE": 64}, {"TILE": 128, "GPU_MAXRREGCOUNT": 128}]')
        each = tuple(
            _candidate(dict(values), source, long.get("launch"), at=at, own=own, resettle=resettle, refront=refront) for values in sets
        )
        _check_twice(each, at=at)
        found.append(Candidates(pattern=str(pattern), source=source, keys=keys, candidates=each))
    return tuple(found)


def _source(name: str, sources: Sequence[Source], *, at: str) -> Source:
    wanted = [source for source in sources if not name or str(name) in (source.name, source.stem) or source.name.endswith(f"/{name}")]
    if len(wanted) == 1:
        return wanted[0]
    names = ", ".join(source.name for source in sources)
    if not name:
        msg = f"{at}: the module has {len(sources)} sources, and which one holds the kernel is not said"
        raise UsageError(msg, hint=f'add "source", one of {names}' if names else "give the module the kernel's source")
    msg = f"{at}: {name} is {'no source' if not wanted else 'the name of several sources'} of the module"
    raise UsageError(msg, hint=f"it has {names}")


def _candidate(  # noqa: PLR0913 - what a candidate is made of
    values: dict[str, Any],
    source: Source,
    launch: Any,
    *,
    at: str,
    own: Settings,
    resettle: Callable[[Mapping[str, Any]], Settings],
    refront: Callable[[Source, Mapping[str, Any]], Any],
) -> Candidate:
    needs = _needs(values.pop("needs", ()), at=at)
    spelled = _pairs({name: _spelled(value) if isinstance(value, (list, tuple)) else value for name, value in values.items()}, at=at)
    variables = {name: value for name, value in values.items() if name.startswith("GPU_")}
    if strange := sorted(set(variables) - set(OPTIONS)):
        msg = f"{at}: {strange[0]} cannot be set for a candidate"
        raise UsageError(msg, hint=f"candidates take {', '.join(OPTIONS)}, and defines of any other name")
    defines = {name: value for name, value in values.items() if name not in variables}
    if defines and not source.name.endswith(".cu"):
        msg = f"{at}: {min(defines)} is a define, and {source.name} is not compiled by a front end"
        raise UsageError(msg, hint=f"candidates of IR take {', '.join(OPTIONS)}")
    return Candidate(
        values=dict(spelled),
        source=_variant(source, defines, variables, refront),
        settings=resettle(variables) if variables else own,
        needs=needs,
        launch=_launch(launch, values, at=at),
    )


def _pairs(given: Any, *, at: str) -> Pairs:
    """Names and values in the form that is compared. What has no such form is told before anything is built."""
    if not hasattr(given, "items"):
        msg = f"{at}: {given!r} is no dictionary"
        raise UsageError(msg, hint='as in {"n": 4096}')
    return pairs(given, what=at)


def _needs(given: Any, *, at: str) -> tuple[str, ...]:
    names = (given,) if isinstance(given, str) else given
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        msg = f"{at}: needs {given!r} are no names of kernels"
        raise UsageError(msg, hint='as in "needs": ["fill"]')
    return tuple(names)


def _spelled(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(int(value) if isinstance(value, bool) else value)


def _variant(source: Source, defines: Mapping[str, Any], variables: Mapping[str, Any], refront: Any) -> Source:
    """The same source where nothing that a front end reads is set otherwise."""
    options = refront(source, variables)
    more = tuple(name if value is None else f"{name}={_spelled(value)}" for name, value in sorted(defines.items()))
    options = replace(options, defines=(*options.defines, *more))
    if options == source.options:
        return source
    told = repr([(name, value) for name, value in sorted(vars(options).items()) if value != getattr(source.options, name)])
    return replace(source, options=options, variant=hashlib.sha256(f"{source.variant}{told}".encode()).hexdigest()[:6])


def _launch(launch: Any, values: Mapping[str, Any], *, at: str) -> dict[str, Any] | None:
    """As JSON says it; a function is asked for each candidate's values."""
    said = launch(dict(values)) if callable(launch) else launch
    if said is None:
        return None
    try:
        found: dict[str, Any] = json.loads(json.dumps(dict(said), sort_keys=True))
        read_launch(found)
    except UsageError as error:
        error.what = f"{at}: {error.what}"
        raise
    except (TypeError, ValueError) as error:
        msg = f"{at}: launch does not read: {error}"
        raise UsageError(
            msg, hint="it is a dictionary with grid, block, shared and args, or a function of the values that gives one"
        ) from None
    return found


def _check_twice(candidates: Sequence[Candidate], *, at: str) -> None:
    seen: list[dict[str, str]] = []
    for candidate in candidates:
        if candidate.values in seen:
            label = " ".join(f"{name}={value}" for name, value in candidate.values.items()) or "the source as it is"
            msg = f"{at}: {label} stands there twice"
            raise UsageError(msg, hint="name each set of values once")
        seen.append(candidate.values)
