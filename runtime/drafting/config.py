"""DraftConfig: which drafters propose tokens, and how many, read from a text such as ``own``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType

from ...engines.constants import integer
from ...engines.errors import MOST_PROBLEMS, UsageError, did_you_mean, shown

MAX_DRAFT_TOKENS = integer("draft_max_tokens")
_MAX_LENGTH = 200  # characters; the longest sensible text has 60
_INTEGER = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True)
class PartKind:
    """A kind of drafter: its form in a text, and whether it runs layers of the model."""

    form: str
    runs_layers: bool = False

    @property
    def takes_number(self) -> bool:
        """True for ``name:N``."""
        return ":" in self.form


PART_KINDS: Mapping[str, PartKind] = MappingProxyType(
    {
        "own": PartKind("own"),
        "lookup": PartKind("lookup"),
        "ends": PartKind("ends:N", runs_layers=True),
        "first": PartKind("first:N", runs_layers=True),
        "trained": PartKind("trained", runs_layers=True),
    }
)
"""The drafters by name, in the order in which messages list them."""

AUTO = "auto"
"""The text for the drafts that a bundle recommends; see `DraftResolver`."""

_FORMS = ", ".join(kind.form for kind in PART_KINDS.values()) + ", off or auto"
_EXAMPLES = "own, lookup, own+ends:3 or own+ends:3,tokens=5"


@dataclass(frozen=True)
class DraftPart:
    """One drafter of a configuration: its name, and the number of layers where it takes one."""

    name: str
    number: int | None = None

    @property
    def runs_layers(self) -> bool:
        """True if the drafter runs layers of the model, so it always proposes something."""
        return PART_KINDS[self.name].runs_layers

    def __str__(self) -> str:
        return self.name if self.number is None else f"{self.name}:{self.number}"


@dataclass(frozen=True)
class DraftConfig:
    """Drafters in order of precedence, and limits on what they propose.

    In each pass, the drafter with the highest expected gain drafts for a row; without ``adapt`` it
    is the first that proposes something. ``tokens`` bounds the drafted tokens of a row in one pass.
    With ``adapt``, measured costs and acceptance decide how many there are, and whether there are
    any. ``exact`` refuses engines whose results may depend on how many tokens a pass has.

    >>> str(parse_draft("own + ends:3, tokens=5"))
    'own+ends:3,tokens=5'
    """

    parts: tuple[DraftPart, ...]
    tokens: int = MAX_DRAFT_TOKENS
    adapt: bool = True
    exact: bool = True

    @property
    def runs_layers(self) -> bool:
        """True if layers draft, those of the model or the bundle's own."""
        return any(part.runs_layers for part in self.parts)

    @property
    def uses_draft_layer(self) -> bool:
        """True if the bundle's draft layer drafts, which has a KV cache of its own."""
        return any(part.name == "trained" for part in self.parts)

    def __str__(self) -> str:
        """Return the shortest text that `parse_draft` reads as this configuration."""
        text = "+".join(map(str, self.parts))
        for one in fields(self)[1:]:
            value = getattr(self, one.name)
            if value != one.default:
                text += f",{one.name}={_written(value)}"
        return text


def is_auto(text: object) -> bool:
    """Return whether ``text`` is ``auto``, which `parse_draft` does not read."""
    return isinstance(text, str) and text.strip().lower() == AUTO


def parse_draft(text: str | None) -> DraftConfig | None:
    """Read ``PART[+PART…][,KEY=VALUE…]``; None and ``off`` mean no drafts.

    >>> parse_draft("own,tokens=4").tokens, parse_draft("off")
    (4, None)

    Raises UsageError, with all problems of the text.
    """
    if text is None:
        return None
    if not isinstance(text, str):
        raise UsageError("draft", f"is {shown(text)}; allowed: a text such as {_EXAMPLES}, or off")
    if len(text) > _MAX_LENGTH:
        raise UsageError("draft", f"has {len(text):,} characters; allowed: {_MAX_LENGTH}")
    parts_text, *pairs = text.strip().lower().split(",")
    names = [part.strip() for part in parts_text.split("+")]
    if names == ["off"] and not pairs:
        return None
    reading = _Reading()
    parts = tuple(part for name in names if (part := reading.part(name)) is not None)
    reading.check_order(parts)
    values = reading.values(pair.strip() for pair in pairs)
    if reading.problems:
        raise UsageError("draft", *reading.problems[:MOST_PROBLEMS])
    return DraftConfig(parts, **values)  # type: ignore[arg-type]  # `values` checks each


def canonical_drafts(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the canonical texts of drafts to measure, each once; ``off`` is left out.

    Raises UsageError, with all problems of a text.
    """
    canonical = (AUTO if is_auto(text) else str(parse_draft(text) or "off") for text in texts)
    return tuple(text for text in dict.fromkeys(canonical) if text != "off")


@dataclass
class _Reading:
    """The problems found while a text is read."""

    problems: list[str] = field(default_factory=list)

    def part(self, text: str) -> DraftPart | None:
        """Read one drafter; None after a problem."""
        name, colon, number = (piece.strip() for piece in text.partition(":"))
        kind = PART_KINDS.get(name)
        if kind is None:
            alone = name in ("off", AUTO)
            hint = "stands alone" if alone else f"is unknown; {did_you_mean(name, PART_KINDS)}"
            joint = "; " if alone else ""
            self.problems.append(f"{text!r} {hint}{joint}allowed: {_FORMS}")
            return None
        if not kind.takes_number:
            if colon:
                self.problems.append(f"{text!r} has a number; write {kind.form}")
            return DraftPart(name)
        if not _INTEGER.fullmatch(number) or int(number) < 1:
            self.problems.append(f"{text!r} needs a number of layers, e.g. {name}:3")
            return None
        return DraftPart(name, int(number))

    def check_order(self, parts: tuple[DraftPart, ...]) -> None:
        """Refuse a part that is named twice, or that would never be used."""
        for index, part in enumerate(parts):
            if any(part.name == other.name for other in parts[:index]):
                self.problems.append(f"{part.name!r} is named twice; name it once")
            elif part.runs_layers and index + 1 < len(parts):
                self.problems.append(
                    f"{str(part)!r} always proposes, so what follows it is never asked; "
                    "put it last, and only one such part"
                )

    def values(self, pairs: Iterable[str]) -> dict[str, object]:
        """Read ``KEY=VALUE`` pairs into the fields of `DraftConfig`."""
        values: dict[str, object] = {}
        for pair in pairs:
            key, _, text = (piece.strip() for piece in pair.partition("="))
            read = _READERS.get(key)
            if read is None:
                meant = did_you_mean(key, _READERS)
                self.problems.append(f"{key!r} is unknown; {meant}allowed: {', '.join(_READERS)}")
            elif key in values:
                self.problems.append(f"{key} is given twice; give it once")
            else:
                value, allowed = read(text)
                values[key] = value
                if value is None:
                    self.problems.append(f"{key} is {shown(text)}; allowed: {allowed}")
        return values


def _read_tokens(text: str) -> tuple[int | None, str]:
    valid = _INTEGER.fullmatch(text) and 1 <= int(text) <= MAX_DRAFT_TOKENS
    return (int(text) if valid else None), f"1 to {MAX_DRAFT_TOKENS}"


def _read_switch(text: str) -> tuple[bool | None, str]:
    return {"yes": True, "no": False}.get(text), "yes or no"


def _written(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


_READERS: Mapping[str, Callable[[str], tuple[int | bool | None, str]]] = MappingProxyType(
    {
        "tokens": _read_tokens,
        "adapt": _read_switch,
        "exact": _read_switch,
    }
)
