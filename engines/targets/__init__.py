"""What engines are made for: one file and one line of the registry a target."""

from .target import TARGETS, Target, compiled_targets, exported_targets, target_of

__all__ = ["TARGETS", "Target", "compiled_targets", "exported_targets", "target_of"]
