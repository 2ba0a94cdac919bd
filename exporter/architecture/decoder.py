"""A decoder as data: its norms, positions, products and head.

A family describes its layers in a ``Decoder``. Parameters, signatures, migration sites and modules
(``decoder_modules``) are derived from that alone. Packed products have their own names in graphs;
``sources`` are the checkpoint's modules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ...engines.manifest import NUM_JOINED, EngineKind, ModelSpec
from .weights import Parameter

HEAD_WEIGHT = "lm_head.weight"
EMBEDDING = "embed_tokens"
POSITIONS = "embed_positions"
HEAD = HEAD_WEIGHT.removesuffix(".weight")
FREQUENCIES = "self_attn.inv_freq"
JOIN_EPSILON = 1e-5  # of the norms of a Join

NormKind = Literal["rms", "layer", "layer without weights"]
Activation = Literal["relu", "gelu", "gated silu"]
NormPlace = Literal["before", "of sum", "of added"]
"""Where a layer applies its norms: before attention and feed-forward; to the sum of the residual
and their outputs (opt-350m); to their outputs before the sum (OLMo 2)."""


@dataclass(frozen=True)
class MigrationSite:
    """The tensors that absorb factors of one product's inputs (``quantization.migration``).

    ``producers``: checkpoint tensors that are divided; the inputs run along their first axis.
    ``fixed``: the reason why no factor can be divided out, or None.
    """

    producers: tuple[str, ...] = ()
    fixed: str | None = None


@dataclass(frozen=True)
class Norm:
    """A normalisation and the path of its parameters."""

    name: str
    width: int
    epsilon: float
    kind: NormKind = "rms"

    def parameters(self, prefix: str) -> tuple[Parameter, ...]:
        """Return the weight and any bias; if the checkpoint has neither, a weight of ones."""
        shape, name = (self.width,), self.name
        if self.kind == "layer without weights":
            return (Parameter(f"{name}.weight", shape, (), keeps_float32=True),)
        return tuple(
            Parameter(f"{name}.{part}", shape, (f"{prefix}{name}.{part}",), keeps_float32=True)
            for part in (("weight",) if self.kind == "rms" else ("weight", "bias"))
        )

    def site(self, prefix: str) -> MigrationSite:
        """Return the site of a product that reads the norm's outputs."""
        if self.kind == "layer without weights":
            return MigrationSite(fixed="the layer norm before it has no weight")
        return MigrationSite(tuple(each.sources[0] for each in self.parameters(prefix)))


@dataclass(frozen=True)
class Product:
    """A product that packs the checkpoint's projections ``sources``, each ``out_sizes`` wide.

    ``factors`` multiply the sources, one each, in float32. ``is_quantized``: it may be quantised.
    """

    name: str
    in_size: int
    out_sizes: tuple[int, ...]
    sources: tuple[str, ...]
    bias: bool = False
    factors: tuple[float, ...] = ()
    is_gated: bool = False
    is_quantized: bool = True

    def parameters(self, prefix: str) -> tuple[Parameter, ...]:
        """Return the weight and, if there is one, the bias."""
        weight = Parameter(
            f"{self.name}.weight",
            (self.in_size, sum(self.out_sizes)),
            self._tensors(prefix, "weight"),
            transposed=True,
            is_product=self.is_quantized,
            out_sizes=self.out_sizes,
            factors=self.factors,
            is_gated=self.is_gated,
        )
        bias = Parameter(
            f"{self.name}.bias",
            (sum(self.out_sizes),),
            self._tensors(prefix, "bias"),
            out_sizes=self.out_sizes,
            factors=self.factors,
        )
        return (weight, bias) if self.bias else (weight,)

    def site(self, prefix: str) -> MigrationSite:
        """Return the site of a product whose inputs are linear in this one's last source."""
        parts = ("weight", "bias") if self.bias else ("weight",)
        return MigrationSite(tuple(self._tensors(prefix, part)[-1] for part in parts))

    def _tensors(self, prefix: str, part: str) -> tuple[str, ...]:
        return tuple(f"{prefix}{source}.{part}" for source in self.sources)


@dataclass(frozen=True)
class Join:
    """A product of concatenated states, each with a norm of its own; only drafts run it."""

    norms: tuple[Norm, ...]
    product: Product

    @classmethod
    def of(cls, kind: EngineKind, model: ModelSpec) -> Join:
        """Return the join of an engine of ``kind``, which is the same in every family."""
        width, count = model.hidden_size, NUM_JOINED[kind]
        norms = (Norm(f"norms.{index}", width, JOIN_EPSILON) for index in range(count))
        return cls(tuple(norms), Product("product", count * width, (width,), ("product",)))

    def parameters(self, prefix: str) -> tuple[Parameter, ...]:
        """Return the weights, which are in a draft layer's file."""
        parts: tuple[Norm | Product, ...] = (*self.norms, self.product)
        return tuple(each for part in parts for each in part.parameters(prefix))


@dataclass(frozen=True)
class Rotation:
    """Rotary positions: radians per position [R / 2] and a factor of cosines and sines.

    ``still_layers`` do not rotate: their frequencies are 0.
    """

    frequencies: tuple[float, ...]
    scale: float
    still_layers: frozenset[int] = frozenset()

    def parameter(self, layer_index: int) -> Parameter:
        """Return the frequencies of a layer, which checkpoints need not contain."""
        shape, is_still = (len(self.frequencies),), layer_index in self.still_layers
        values = (0.0,) * len(self.frequencies) if is_still else self.frequencies
        return Parameter(FREQUENCIES, shape, (), keeps_float32=True, values=values)


@dataclass(frozen=True)
class PositionTable:
    """Learned positions: a table whose row ``offset`` belongs to position 0."""

    rows: int
    offset: int


@dataclass(frozen=True)
class Decoder:
    """A decoder; ``prefix`` precedes the names of all checkpoint tensors except an untied head.

    ``norms`` are those of attention and feed-forward; the products of the latter are
    ``feed_forward``. ``head_norms``: RMS norms of queries and keys, over each head or
    (``norms_whole``) over all heads together. ``buffers``: tensors that a checkpoint may contain
    in addition to parameters.
    """

    model: ModelSpec
    prefix: str
    token_width: int
    positions: PositionTable | Rotation
    norms: tuple[Norm, Norm]
    norm_place: NormPlace
    qkv: Product
    output: Product
    feed_forward: tuple[Product, Product]
    activation: Activation
    head: Product
    final_norm: Norm | None
    head_norms: tuple[Norm, ...] = ()
    norms_whole: bool = False
    project_in: Product | None = None
    project_out: Product | None = None
    token_factors: tuple[float, ...] = ()
    buffers: tuple[str, ...] = ()

    def parameters(self, kind: EngineKind, layer_index: int | None) -> tuple[Parameter, ...]:
        """Return all parameters of one engine, quantised products in execution order."""
        if kind is EngineKind.EMBED:
            return self._embed_parameters()
        if kind in NUM_JOINED:
            return Join.of(kind, self.model).parameters(f"{kind}.")
        if kind is EngineKind.HEAD:
            ends = [part for part in (self.final_norm, self.project_out) if part is not None]
            parameters = (each for part in ends for each in part.parameters(self.prefix))
            return (*parameters, *self.head.parameters(""))
        assert layer_index is not None
        rotation = self.positions if isinstance(self.positions, Rotation) else None
        norm, second_norm = self.norms
        before: list[Norm | Product] = [norm, self.qkv, *self.head_norms]
        behind: list[Norm | Product] = [self.output, second_norm, *self.feed_forward]
        prefix = self._layer_prefix(layer_index)
        return (
            *(each for part in before for each in part.parameters(prefix)),
            *(() if rotation is None else (rotation.parameter(layer_index),)),
            *(each for part in behind for each in part.parameters(prefix)),
        )

    def _embed_parameters(self) -> tuple[Parameter, ...]:
        def table(name: str, rows: int, width: int, factors: tuple[float, ...]) -> Parameter:
            weight = f"{name}.weight"
            source = f"{self.prefix}{weight}"
            return Parameter(weight, (rows, width), (source,), is_table=True, factors=factors)

        tables = [table(EMBEDDING, self.model.vocab_size, self.token_width, self.token_factors)]
        if isinstance(self.positions, PositionTable):
            tables.append(table(POSITIONS, self.positions.rows, self.model.hidden_size, ()))
        projection = self.project_in
        return (*tables, *(() if projection is None else projection.parameters(self.prefix)))

    @property
    def spare_tensors(self) -> Mapping[str, str | None]:
        """Return tensors that a checkpoint may have in addition to those of ``parameters``.

        A tied head maps to the tensor that it must equal, buffers of old files to None.
        """
        tied = {HEAD_WEIGHT: f"{self.prefix}{EMBEDDING}.weight"}
        buffers: dict[str, str | None] = dict.fromkeys(self.buffers)
        return buffers | (tied if self.model.tie_word_embeddings else {})

    def sites(self, kind: EngineKind, layer_index: int | None) -> dict[str, MigrationSite]:
        """Return the site of each quantised product, by the name of its weight.

        A factor of a product's inputs is absorbed by the tensors that produce them: usually by the
        norm before the product. The input of the output projection is linear in V, so V's channels
        absorb it; after SiLU(gate) · up, up's do. ReLU commutes with positive factors, so after it
        the product before it absorbs them.
        """
        if kind is EngineKind.EMBED or kind in NUM_JOINED:
            return {}
        if kind is EngineKind.HEAD:
            producer = self.project_out or self.final_norm
            none = MigrationSite(fixed="no layer norm comes before it")
            return {HEAD_WEIGHT: none if producer is None else producer.site(self.prefix)}
        assert layer_index is not None
        prefix = self._layer_prefix(layer_index)
        first, second = self.feed_forward
        residual = MigrationSite(fixed="its input is the residual as well (norms come after)")
        packed = MigrationSite(
            fixed="the checkpoint packs what produces its input with other channels"
        )
        shared = MigrationSite(fixed="several query heads share a value head")
        function = MigrationSite(fixed=f"a factor does not pass through {self.activation.upper()}")
        is_before, is_packed = self.norm_place == "before", len(self.qkv.sources) == 1
        is_grouped = self.model.num_heads != self.model.num_kv_heads
        inputs = [norm.site(prefix) if is_before else residual for norm in self.norms]
        attended = packed if is_packed else shared if is_grouped else self.qkv.site(prefix)
        activated = function if self.activation == "gelu" else first.site(prefix)
        products = {
            self.qkv: inputs[0],
            self.output: attended,
            first: inputs[1],
            second: packed if first.is_gated and is_packed else activated,
        }
        return {f"{product.name}.weight": site for product, site in products.items()}

    def _layer_prefix(self, layer_index: int) -> str:
        return f"{self.prefix}layers.{layer_index}."
