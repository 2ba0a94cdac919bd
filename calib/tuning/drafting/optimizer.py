"""The optimizer of a draft layer: Muon for matrices, AdamW for the head and all vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch.nn import Parameter
from torch.optim import AdamW, Muon, Optimizer
from typing_extensions import override

_ADAMW_RATE = 0.6  # AdamW's learning rate ÷ Muon's


class DraftOptimizer(Optimizer):
    """Updates ``matrices`` by Muon and ``others`` by AdamW, as one optimizer of Trainer.

    Muon (https://kellerjordan.github.io/posts/muon/) makes the update of a matrix nearly
    orthogonal, so that all directions learn equally fast. Its updates are scaled to the size of
    AdamW's.
    """

    def __init__(
        self,
        matrices: Iterable[Parameter],
        others: Iterable[Parameter],
        learning_rate: float,
        weight_decay: float,
    ) -> None:
        self._parts = (
            Muon(matrices, learning_rate, weight_decay, adjust_lr_fn="match_rms_adamw"),
            AdamW(others, _ADAMW_RATE * learning_rate, weight_decay=weight_decay),
        )
        super().__init__(self._groups(), {})

    @override
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        assert closure is None, "Trainer computes the loss"
        muon, adamw = self._parts
        muon.step()  # type: ignore[no-untyped-call]
        adamw.step()

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"parts": [part.state_dict() for part in self._parts]}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for part, state in zip(self._parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)
        self.param_groups = self._groups()  # loading replaces them

    def _groups(self) -> list[dict[str, Any]]:
        return [group for part in self._parts for group in part.param_groups]
