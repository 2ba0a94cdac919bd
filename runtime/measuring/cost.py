"""Cost of decoding: bytes per step at small batches, multiply-adds per prompt."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass

from ...engines.kernels.formats import fits_block_linear
from ...engines.manifest import EngineKind, EngineSpec, Manifest, Quantization, TensorRole
from ...engines.memory import ITEM_BYTES
from ...engines.targets import target_of
from ..kv.buffers import KVLayout
from ..schedule import ExitSchedule, LayerPlan

_CACHED_BYTES = 8 << 20  # steps that read no more than this are served by caches at any depth
_BEYOND_BYTES = 2.5  # 1.8 to 2.2 were measured if only the fewer layers fit into a cache


@dataclass(frozen=True)
class StepCost:
    """Bytes that one decode step reads: weights with their scales, and KV caches."""

    weights: int
    kv: int

    @property
    def total(self) -> int:
        """The sum of weights and KV caches."""
        return self.weights + self.kv


@dataclass(frozen=True)
class RunningStep:
    """Bytes that a step of a running batch reads, expected over the positions of its rows."""

    weights: float  # of embedding, head, and each layer that any row runs
    shared: float  # the same if each layer counts by the share of rows that run it
    kv: float  # of all rows


class CostModel:
    """Counts bytes from a bundle's manifest alone.

    At batch 1 every kernel runs at about memory bandwidth, so bytes predict time: 24 layers of
    50 MB and a head of 100 MB against 6 such layers and the head are 1300 / 400 = 3.25×.
    Activations stay in cache and don't count. ``on_device`` is for engines on a GPU.
    """

    def __init__(self, manifest: Manifest, *, on_device: bool = False) -> None:
        embed, *layers, head = (
            engine.step_bytes * (1 if on_device else _widening(manifest, engine))
            for engine in manifest.engines
        )
        self._ends = embed + head
        self._layer_weights = tuple(_num_weights(manifest, engine) for engine in manifest.layers)
        self._head_weights = _num_weights(manifest, manifest.head)
        self._attention_width = manifest.model.num_heads * manifest.model.head_dim  # N D
        self._layers = tuple(layers)
        layout = KVLayout.of(manifest.layers[0].tensor(TensorRole.PAST_KEY))
        self.kv_bytes_per_position = 2 * layout.nbytes(rows=1, capacity=1)  # of one layer

    def step(self, plan: LayerPlan, lengths: Sequence[int]) -> StepCost:
        """Return the cost of one step of ``plan``.

        ``lengths`` are the positions that each row attends to, including its own. Weights are read
        once for all rows.
        """
        weights = self._ends + sum(self._layers[layer] for layer in plan.layers)
        return StepCost(weights, len(plan) * sum(lengths) * self.kv_bytes_per_position)

    def decode(
        self, schedule: ExitSchedule, prompt_lengths: Sequence[int], num_tokens: int
    ) -> StepCost:
        """Return the summed cost of all steps after the prompt that produces ``num_tokens``.

        The prompt yields the first token, so the steps have the generated indices 0 …
        num_tokens − 2; step i attends to prompt + i + 1 positions.
        """
        steps = [
            self.step(schedule.plan(index), [length + index + 1 for length in prompt_lengths])
            for index in range(num_tokens - 1)
        ]
        return StepCost(sum(step.weights for step in steps), sum(step.kv for step in steps))

    def running_step(
        self, schedule: ExitSchedule, prompt_length: int, num_tokens: int, slots: int
    ) -> RunningStep:
        """Return the bytes of a step of ``slots`` rows at any positions in their texts.

        Rows of a running batch are at independent, uniformly random tokens; a layer's weights are
        read if any row runs it: with 2 rows that run it at one token in three, in 1 − (2/3)² = 5/9
        of all steps. With one slot this is the mean step of ``decode``.
        """
        steps = num_tokens - 1
        counts = [0] * len(self._layers)  # tokens that run each layer
        for index in range(steps):
            for layer in schedule.plan(index).layers:
                counts[layer] += 1
        # In integers, so that schedules with equally many layers have exactly equal costs.
        ways = steps**slots
        read = sum(
            weights * (ways - (steps - count) ** slots)
            for weights, count in zip(self._layers, counts, strict=True)
        )
        shared = sum(map(operator.mul, self._layers, counts))
        kv = slots * self.decode(schedule, [prompt_length], num_tokens).kv
        return RunningStep(self._ends + read / ways, self._ends + shared / steps, kv / steps)

    def mixing_loss(
        self, schedule: ExitSchedule, prompt_length: int, num_tokens: int, slots: int
    ) -> float:
        """Return the bytes of a `running_step` ÷ those of one that shares all reads.

        It is 1.0 for one slot, and for a constant depth. With many slots and only weights it is the
        largest depth over the mean depth: a linear fall from 16 layers to 8 gives 16 / 12 = 1.33.
        """
        step = self.running_step(schedule, prompt_length, num_tokens, slots)
        return (step.weights + step.kv) / (step.shared + step.kv)

    def prefill(self, schedule: ExitSchedule, prompt_lengths: Sequence[int]) -> int:
        """Return the multiply-adds of a prompt pass, without padding.

        Each layer costs one per weight and prompt token that runs it, and 2ND per pair of a token
        and a token that it attends to; the head one per weight and row. 12 layers with
        ``prompt=decay`` to 4 cost the matrices of 8 layers on average. A long prompt is bound by
        arithmetic, so this predicts its time, while bytes predict a step's.
        """
        total = len(prompt_lengths) * self._head_weights
        for length in prompt_lengths:
            for layer, weights in enumerate(self._layer_weights):
                active = schedule.prompt_prefix(layer, length)
                total += weights * active + self._attention_width * active * (active + 1)
        return total

    def bytes_ratio(
        self, schedule: ExitSchedule, prompt_lengths: Sequence[int], num_tokens: int
    ) -> float:
        """Return the bytes that the steps after the prompt read at full depth ÷ at ``schedule``.

        This is not a speed-up: calls have prompts, and steps have other costs. The small model of
        examples/restaurants reads 3.4 times fewer bytes at ``4x`` and is about 1.9 times as fast.
        """
        full = ExitSchedule.full(schedule.num_layers)
        at_full_depth = self.decode(full, prompt_lengths, num_tokens).total
        return at_full_depth / self.decode(schedule, prompt_lengths, num_tokens).total

    def most_speedup(self, schedule: ExitSchedule, layers: float) -> float:
        """Return the most that ``schedule`` can gain over full depth.

        ``layers``: the number of layers run at full depth ÷ at ``schedule``. Embedding, head and
        all other work only lower the gain; prompts that skip layers, and caches that hold only the
        fewer layers, may raise it.
        """
        most = layers
        if schedule.prompt != "full":
            most = max(most, schedule.num_layers / schedule.min_exit_layer)
        full = self.step(ExitSchedule.full(schedule.num_layers).plan(0), [1]).total
        if full > _CACHED_BYTES:
            own = self.step(schedule.plan(schedule.horizon), [1]).total
            most = max(most, _BEYOND_BYTES * full / own)
        return most


def _widening(manifest: Manifest, engine: EngineSpec) -> int:
    """Return the ratio of the weights of ``engine`` in memory to those on disk, on a CPU.

    ONNX Runtime's CPU provider has no float16 matrix product, so such weights become float32.
    skipdec's kernels read them unchanged.
    """
    widened = (
        target_of(manifest.target).widens_float16
        and manifest.kernels is None
        and manifest.precision.dtype == "float16"
        and _quantize(manifest, engine) == "none"
        and engine.kind != EngineKind.EMBED
    )
    return 2 if widened else 1


def _num_weights(manifest: Manifest, engine: EngineSpec) -> int:
    """Return the number of weights that ``engine`` reads per token, from their bytes.

    Biases and norms count, too; they are below 0.1 % of opt-1.3b.
    """
    precision, quantize = manifest.precision, _quantize(manifest, engine)
    stored = {"int4": 0.5, "none": ITEM_BYTES[precision.dtype]}.get(quantize, 1)
    if precision.block_size is not None and quantize in ("int4", "int8-block"):
        is_packed = manifest.kernels is not None and fits_block_linear(precision, quantize)
        scale = ITEM_BYTES["bfloat16" if is_packed else "float32"]  # bytes, of a block
        stored += scale / precision.block_size
    return round(engine.step_bytes / stored)


def _quantize(manifest: Manifest, engine: EngineSpec) -> Quantization:
    is_head = engine.kind == EngineKind.HEAD
    return manifest.precision.head_quantize if is_head else manifest.precision.quantize
