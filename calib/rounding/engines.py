"""One engine's weights in three variants: exact, rounded to nearest, and rounded by GPTQ."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from ...engines.errors import CheckpointError
from ...engines.manifest import EngineKind, ModelSpec
from ...engines.memory import Array
from ...exporter.architecture.architecture import engine_parameters
from ...exporter.architecture.weights import engine_name
from ...exporter.checkpoint.reader import CheckpointReader
from ..layerwise.engines import SquareSums, load_engine, observed
from .config import GridTarget
from .files import RoundedProduct
from .gptq import Int4Grid, round_weight


class RoundedEngine:
    """The float32 module of one engine, and the weights [K, N] of its products by name.

    ``exact`` are the checkpoint's weights, ``nearest`` those that export would make of them, and
    ``rounded`` those that export will make of the written checkpoint, equal to ``nearest`` until
    ``round``. The module computes with ``exact`` until ``use``.
    """

    def __init__(
        self,
        kind: EngineKind,
        model: ModelSpec,
        reader: CheckpointReader,
        target: GridTarget,
        block_size: int,
        index: int | None,
    ) -> None:
        self.name = engine_name(kind, index)
        self.module = load_engine(kind, model, reader, index)
        self._kind = kind
        self._reader = reader
        self._parameters = engine_parameters(kind, model, index)
        self._grids = {
            parameter.name: Int4Grid(target, block_size, _stored_type(reader, parameter.sources[0]))
            for parameter in self._parameters
            if parameter.is_product
        }
        self.exact = {name: self.module.get_parameter(name).data for name in self._grids}
        self.nearest = {
            name: torch.from_numpy(grid.quantizer.dequantized(self.exact[name].numpy()))
            for name, grid in self._grids.items()
        }
        self.rounded = dict(self.nearest)

    def use(self, weights: Mapping[str, Tensor]) -> None:
        """Make the module compute with ``weights``."""
        for name, weight in weights.items():
            self.module.get_parameter(name).data = weight

    def round(self, run: Callable[[], object], damping: float) -> None:
        """Round each product's weight by the inputs that ``run`` sends through the module.

        Earlier products are already rounded. Raises CheckpointError if inputs are NaN or infinite.
        """
        for name, grid in self._grids.items():
            hessian = self._hessian(name, run)
            self.rounded[name] = round_weight(self.exact[name], hessian, grid, damping)
            self.use({name: self.rounded[name]})

    def measure(self, run: Callable[[], object]) -> list[RoundedProduct]:
        """Measure the errors of both variants on inputs that ``run`` sends through the module.

        The module must use the exact weights.
        """
        sums = {name: SquareSums() for name in self._grids}

        def compare(name: str, inputs: Tensor, output: Tensor) -> None:
            exact = self.exact[name]
            sums[name].add(
                output=output,
                nearest=inputs @ (self.nearest[name] - exact),
                rounded=inputs @ (self.rounded[name] - exact),
            )

        with observed(self.module, self._grids, compare):
            run()
        return [
            RoundedProduct(
                engine=self.name,
                weight=name,
                tokens=total.tokens,
                nearest_error=total.relative("nearest", "output"),
                rounded_error=total.relative("rounded", "output"),
            )
            for name, total in sums.items()
        ]

    def tensors(self) -> dict[str, Array]:
        """Return the checkpoint's tensors with the rounded weights, by canonical name.

        Each is [N, K] in the type in which it was read. A tied head's weight gets its own name, not
        the embedding's.
        """
        tensors: dict[str, Array] = {}
        for parameter in self._parameters:
            for position, source in enumerate(parameter.sources):
                tensor = self._reader.read(source)
                if parameter.name not in self.rounded:
                    tensors[source] = tensor
                    continue
                parts = torch.split(
                    self.rounded[parameter.name], list(parameter.source_sizes), dim=1
                )
                stored = parts[position].T.numpy()
                if parameter.factors:  # export multiplies by them
                    stored = stored / parameter.factors[position]
                name = source if self._kind is EngineKind.LAYER else parameter.name
                tensors[name] = stored.astype(tensor.dtype)
        return tensors

    def _hessian(self, wanted: str, run: Callable[[], object]) -> Tensor:
        """Return Xᵀ X [K, K] of the inputs X [n, K] of the product ``wanted``."""
        hessian = torch.zeros(2 * self.exact[wanted].shape[:1])

        def add(_: str, inputs: Tensor, __: Tensor) -> None:
            rows = inputs.flatten(0, -2)  # [n, K]
            hessian.addmm_(rows.T, rows)

        with observed(self.module, [wanted], add):
            run()
        if not bool(hessian.isfinite().all()):
            raise CheckpointError(
                self.name, f"the input of {wanted} is NaN or infinite; check the weights"
            )
        return hessian


def verbatim_tensors(
    kind: EngineKind, model: ModelSpec, reader: CheckpointReader
) -> dict[str, Array]:
    """Return an engine's tensors unchanged from the checkpoint, by canonical name."""
    return {
        source: reader.read(source)
        for parameter in engine_parameters(kind, model)
        for source in parameter.sources
    }


def _stored_type(reader: CheckpointReader, name: str) -> torch.dtype:
    dtype = reader.read_rows(name, 0, 0).dtype
    return torch.float16 if dtype == "float16" else torch.float32
