"""The file of ``--config``: the fields of a command's configurations as YAML or TOML."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..documents import read_file
from ..errors import UsageError

_MAX_BYTES = 1 << 20


@dataclass(frozen=True)
class OptionFile:
    """A file's fields by name; a nested configuration is a mapping."""

    path: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, path: str) -> OptionFile:
        """Read a file. Raises UsageError unless it is a mapping in YAML or TOML."""
        suffix = Path(path).suffix
        if suffix not in (".yaml", ".yml", ".toml"):
            raise UsageError(path, f"ends in {suffix!r}; allowed: .yaml, .yml, .toml")
        content = read_file(Path(path), UsageError, limit=_MAX_BYTES)
        kind, parse = ("TOML", tomllib.loads) if suffix == ".toml" else ("YAML", _yaml)
        try:
            values = parse(content.decode("utf-8-sig"))
        except RecursionError:
            raise UsageError(path, "is nested too deeply") from None
        except ValueError as error:
            raise UsageError(path, f"is not {kind}: {error}") from None
        if not isinstance(values, dict):
            raise UsageError(
                path, f"is a {type(values).__name__}; allowed: a mapping of fields to values"
            )
        return cls(path, values)


def _yaml(text: str) -> Any:  # noqa: ANN401  (any YAML value)
    """Parse YAML into plain values; an empty text is an empty mapping.

    Raises ValueError for invalid YAML and, as TOML's parser does, for a field that is given twice.
    """
    import yaml

    class Loader(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML is untyped
        """PyYAML's loader, which on its own would let the last of equal keys win."""

        def compose_mapping_node(self, anchor: Any) -> Any:  # noqa: ANN401
            node = super().compose_mapping_node(anchor)
            keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
            for key, times in Counter(keys).items():
                if times > 1:
                    raise ValueError(f"{key!r} is given twice; leave one of them out")
            return node

    try:
        values = yaml.load(text, Loader)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None
    except (AttributeError, LookupError):  # as in !!bool x
        raise ValueError("a value does not fit its tag") from None
    return {} if values is None else values


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of both; ``above`` wins where both have one. Mappings are merged.

    >>> merged({"data": {"path": "a.csv", "preset": "e2e"}}, {"data": {"path": "b.csv"}})
    {'data': {'path': 'b.csv', 'preset': 'e2e'}}
    """
    values = {**below, **above}
    for name in below.keys() & above.keys():
        if isinstance(below[name], Mapping) and isinstance(above[name], Mapping):
            values[name] = merged(below[name], above[name])
    return values
