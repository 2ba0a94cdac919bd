"""Targets that engines are made for: one file and one registry line per target."""

from .target import TARGETS, Target, compiled_targets, exported_targets, target_of

__all__ = ["TARGETS", "Target", "compiled_targets", "exported_targets", "target_of"]
