"""Provide two short examples of unlike length, and batches as in tunings."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from skipdec.calib.data.tokenised import TokenisedExample
from skipdec.calib.tuning.batches import ExampleDataset, collate

ROWS = (TokenisedExample((5, 6, 7), (8, 9, 10, 11, 2), ""), TokenisedExample((5,), (8, 9, 2), ""))


def batch_of(rows: Sequence[TokenisedExample]) -> dict[str, Tensor]:
    """Return the batch of all ``rows``."""
    dataset = ExampleDataset(rows)
    return collate([dataset[index] for index in range(len(rows))])
