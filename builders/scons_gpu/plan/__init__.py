"""Indexes become a plan: what one module's image for one architecture is made of."""

from __future__ import annotations

from scons_gpu.plan.candidates import Tuned, Variant, decided, reached
from scons_gpu.plan.model import Joined, Part, Plan, PlannedCandidate, PlannedKernel, PlannedProblem, PlannedState, from_text, to_text
from scons_gpu.plan.plan import Key, plan, refusal

__all__ = [
    "Joined",
    "Key",
    "Part",
    "Plan",
    "PlannedCandidate",
    "PlannedKernel",
    "PlannedProblem",
    "PlannedState",
    "Tuned",
    "Variant",
    "decided",
    "from_text",
    "plan",
    "reached",
    "refusal",
    "to_text",
]
