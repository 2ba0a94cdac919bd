"""Install a package that adds a decay by an entry point, as pip would."""

from __future__ import annotations

from pathlib import Path

RULE = '''
from dataclasses import dataclass

from skipdec import Decay, ScheduleFields


@dataclass(frozen=True)
class Hold(Decay):
    """Max for ``held`` tokens, then min."""

    held: int

    def budget(self, schedule: ScheduleFields, index: int) -> int:
        return schedule.max_exit_layer if index < self.held else schedule.min_exit_layer
'''


def install_rule(site: Path, *points: str, code: str = RULE) -> Path:
    """Write module ``holding`` and its metadata into ``site``; ``points`` are lines of the group.

    >>> install_rule(tmp_path, "hold = holding:Hold")
    """
    (site / "holding.py").write_text(code)
    information = site / "holding-0.1.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: holding\nVersion: 0.1\n")
    lines = ["[skipdec.decays]", *points, ""]
    (information / "entry_points.txt").write_text("\n".join(lines))
    return site
