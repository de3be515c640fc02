"""What a list of nvcc's flags comes to: settings of this tool, flags that stay nvcc's, and what is lost."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Remark", "Setting", "Translation"]


@dataclass(frozen=True)
class Setting:
    """What one flag sets."""

    name: str
    """A variable of SCons or of ours."""
    value: str | bool
    flag: str
    """As the user spelled it."""


@dataclass(frozen=True)
class Remark:
    """Something that is other than with nvcc."""

    text: str
    unless: tuple[str, ...] = ()
    """With whom it is not: who is given the flag as it is."""


@dataclass(frozen=True)
class Translation:
    """What a list of nvcc's flags comes to."""

    settings: tuple[Setting, ...] = ()
    """In order. A variable that collects gets what all of them say, of another the last counts."""
    remarks: tuple[Remark, ...] = ()
    kept: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Flags as they are, one word each, and who is given them: `nvcc` and `nvrtc` as front ends, `object` for GPU_HOST=nvcc."""

    def all(self, name: str) -> tuple[str, ...]:
        """What a variable gets that collects."""
        return tuple(str(setting.value) for setting in self.settings if setting.name == name)

    def last(self, name: str) -> Setting | None:
        """What any other is set to."""
        return next((setting for setting in reversed(self.settings) if setting.name == name), None)

    def passed(self, *tools: str) -> tuple[str, ...]:
        """The flags that one of `tools` is given as they are."""
        return tuple(flag for flag, who in self.kept if not set(who).isdisjoint(tools))
