"""The JSON of a GPU check: what each finished part found, so that another call can continue it."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Self

from skipdec.engines.errors import UsageError

FORMAT = 1
State = Literal["passed", "failed", "hung", "cut off"]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How one part ended. ``result`` is the JSON that it printed, ``output`` the end of its words.

    "cut off": the call's time was over before the part's own; another call runs it again.
    """

    name: str
    state: State
    seconds: float
    gpu: str  # of the machine that ran it
    result: dict[str, Any] | None = None
    output: str = ""


@dataclass(frozen=True, kw_only=True)
class Record:
    """All outcomes so far, in the order in which parts ended; ``measured``: of CheckConfig."""

    measured: dict[str, object]
    versions: str = ""
    outcomes: tuple[Outcome, ...] = ()

    def outcome(self, name: str) -> Outcome | None:
        """Return how a part ended, if it has."""
        return next((one for one in self.outcomes if one.name == name), None)

    def is_finished(self, name: str) -> bool:
        """Return True if a part need not run again."""
        outcome = self.outcome(name)
        return outcome is not None and outcome.state != "cut off"

    def with_outcome(self, outcome: Outcome) -> Record:
        """Return a record with ``outcome``, which replaces an earlier one of its part.

        A part that is cut off a second time counts as hung, so that no call begins it again.
        """
        earlier = self.outcome(outcome.name)
        if earlier is not None and earlier.state == outcome.state == "cut off":
            outcome = Outcome(**{**asdict(outcome), "state": "hung"})
        others = tuple(one for one in self.outcomes if one.name != outcome.name)
        return Record(measured=self.measured, versions=self.versions, outcomes=(*others, outcome))

    def save(self, path: Path) -> None:
        """Replace ``path`` in one step: a reader finds the old record or the new one."""
        document = {"format": FORMAT, **asdict(self)}
        partial = path.with_name(f".{path.name}.partial")
        with partial.open("w", encoding="utf-8") as file:
            json.dump(document, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a record. Raises UsageError if it is not one of this version."""
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            if document.pop("format") != FORMAT:
                raise ValueError(f"it has another format than {FORMAT}")
            outcomes = tuple(Outcome(**one) for one in document.pop("outcomes"))
            return cls(**document, outcomes=outcomes)
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise UsageError(
                str(path), f"is no record of a GPU check ({error}); give the gpu-check.json of one"
            ) from error

    def require_same(self, measured: dict[str, object], path: Path) -> None:
        """Raise UsageError if the record is of another model, device or size."""
        different = [name for name, value in measured.items() if self.measured.get(name) != value]
        if different:
            was = {name: self.measured.get(name) for name in different}
            now = {name: measured[name] for name in different}
            raise UsageError(str(path), f"is a check with {was}, not {now}; begin without --resume")
