"""Events: what a long call tells whoever waits for it."""

from __future__ import annotations

from collections.abc import Sequence


class Events:
    """Is told how far a call is, and ignores it; derive from it and override what you want to show.

    One object serves ``export``, ``build_bundle``, ``tune``, ``calibrate``, ``round_weights``,
    ``evaluate``, ``fit`` and ``run_benchmark``. All but ``part`` is called from the thread that
    made the call. What a method raises, KeyboardInterrupt included, ends the work.
    """

    def planned(self, summary: str, warnings: Sequence[str] = ()) -> None:
        """Everything is checked and work begins: what will be done, and what deserves attention."""

    def stage(self, name: str, total: int | None = None) -> None:
        """A stage of ``total`` steps begins, e.g. ``("building", 26)``; the one before is over.

        None: nobody knows how many. The same name again: now it is known.
        """

    def advance(self, item: str = "", steps: int = 1, *, detail: str = "") -> None:
        """Steps of the stage are done; ``item`` names what, ``detail`` says how it went.

        Of an export: ``("layer_007", detail="50.4 MB    1.23 s")``.
        """

    def part(self, name: str, phase: str, step: int, total: int) -> None:
        """Part of an item is at ``step`` of ``total`` of a phase; parts go on side by side.

        Of an export, one TensorRT plan: ``("layer_007.t256", "Tactic selection", 3, 10)``. The
        item's name comes first in the part's, and ``advance`` with that item ends it. Called by
        the threads that wait for the builders, several at once.
        """

    def status(self, text: str) -> None:
        """A figure of the moment, e.g. ``step 40: loss 2.310``."""

    def warn(self, text: str) -> None:
        """Something that was found on the way deserves attention, though the work goes on."""

    def note(self, text: str) -> None:
        """A line that is worth keeping."""
