"""Events: the progress interface of long calls."""

from __future__ import annotations

from collections.abc import Sequence


class Events:
    """Receives the progress of a call and ignores it; override the methods that you need.

    All methods but ``part`` are called from the calling thread. An exception from a method,
    KeyboardInterrupt included, ends the work.
    """

    def planned(self, summary: str, warnings: Sequence[str] = ()) -> None:
        """Announce that all checks passed and work begins; ``summary`` says what will be done."""

    def stage(self, name: str, total: int | None = None) -> None:
        """Begin a stage of ``total`` steps, e.g. ``("building", 26)``, and end the previous one.

        A ``total`` of None is unknown; a second call with the same name supplies it.
        """

    def advance(self, item: str = "", steps: int = 1, *, detail: str = "") -> None:
        """Report finished steps and their item: ``("layer_007", detail="50.4 MB    1.23 s")``."""

    def part(self, name: str, phase: str, step: int, total: int) -> None:
        """Report step ``step`` of ``total`` of a phase of one part; parts run in parallel.

        In an export, a TensorRT plan: ``("layer_007.t256", "Tactic selection", 3, 10)``, named
        after its item, which ``advance`` ends. Called concurrently by the threads that wait for the
        builders.
        """

    def status(self, text: str) -> None:
        """Show a current figure, e.g. ``step 40: loss 2.310``."""

    def warn(self, text: str) -> None:
        """Warn of something that deserves attention; the work continues."""

    def note(self, text: str) -> None:
        """Print a line that is worth keeping."""
