"""What the slots of a running batch hold at most."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SlotLimits:
    """Rows at once, positions of a row (its prompt and text), and bytes of KV memory.

    ``capacity``: positions of a slot where all slots have as many, on a device. ``bucket``: the
    same where it is static in the engines, None where they take any. ``most_prompts`` and
    ``most_prompt_tokens``, of each of them, bound a call for prompts; None: nothing does.
    """

    max_rows: int
    max_positions: int
    capacity: int
    kv_bytes: int
    bucket: int | None = None
    most_prompts: int | None = None
    most_prompt_tokens: int | None = None
