"""A family unknown to skipdec: one file, registered by a test.

It differs from OPT wherever a family may: names, RMS norms, attention and feed-forward in parallel
behind one norm, rotary positions in every layer (none if ``rope_theta`` is null), its own head
width, fewer heads for keys and values, an untied head.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from skipdec.engines.manifest import EngineKind, FloatType, ModelSpec
from skipdec.exporter.architecture.architecture import HEAD_WEIGHT, CachedAttention, MigrationSite
from skipdec.exporter.architecture.modules import Projection, Table
from skipdec.exporter.architecture.signature import Signature, decoder_signature
from skipdec.exporter.architecture.weights import Parameter

CONFIG: dict[str, Any] = {
    "model_type": "toy",
    "layers": 5,
    "width": 32,
    "query_heads": 4,
    "key_heads": 2,
    "head_width": 16,
    "inner_width": 48,
    "vocab": 97,
    "positions": 64,
    "rope_theta": 100.0,
}
EPSILON = 1e-6
FIXED = MigrationSite(fixed="two products share its norm")


class Toy:
    """A family of toy models, unlike OPT in every way that the seams allow."""

    def spec_from_config(
        self, config: Mapping[str, Any], name: str, max_seq_len: int | None
    ) -> ModelSpec:
        facts = {key: config[key] for key in ("inner_width", "rope_theta")}
        return ModelSpec(
            family="toy",
            name=name,
            num_layers=config["layers"],
            hidden_size=config["width"],
            num_heads=config["query_heads"],
            num_kv_heads=config["key_heads"],
            head_dim=config["head_width"],
            vocab_size=config["vocab"],
            max_position_embeddings=config["positions"],
            max_seq_len=max_seq_len or config["positions"],
            tie_word_embeddings=False,
            **facts,
        )

    def parameters(
        self, kind: EngineKind, model: ModelSpec, layer_index: int | None
    ) -> tuple[Parameter, ...]:
        size, vocab_size, inner = model.hidden_size, model.vocab_size, model.inner_width
        if kind is EngineKind.EMBED:
            return (
                Parameter("words.weight", (vocab_size, size), ("words.weight",), is_table=True),
            )
        if kind is EngineKind.HEAD:
            return (
                Parameter("norm.weight", (size,), ("norm.weight",), keeps_float32=True),
                product(HEAD_WEIGHT, size, (vocab_size,), ("words_out.weight",)),
            )
        prefix, (query, key) = f"blocks.{layer_index}.", widths(model)
        sources = tuple(f"{prefix}{part}.weight" for part in ("query", "key", "value"))
        return (
            Parameter("norm.weight", (size,), (f"{prefix}norm.weight",), keeps_float32=True),
            product("packed.weight", size, (query, key, key), sources),
            product("mix.weight", query, (size,), (f"{prefix}mix.weight",)),
            product("up.weight", size, (inner,), (f"{prefix}up.weight",)),
            product("down.weight", inner, (size,), (f"{prefix}down.weight",)),
        )

    def spare_tensors(self, model: ModelSpec) -> Mapping[str, str | None]:
        return {"training_step": None}

    def signature(self, kind: EngineKind, model: ModelSpec, dtype: FloatType) -> Signature:
        return decoder_signature(
            kind, model, dtype, positions_in_layers=model.rope_theta is not None
        )

    def module(
        self, kind: EngineKind, model: ModelSpec, dtype: torch.dtype, attention: CachedAttention
    ) -> nn.Module:
        if kind is EngineKind.EMBED:
            return Embed(model, dtype)
        return Head(model, dtype) if kind is EngineKind.HEAD else Layer(model, dtype, attention)

    def migration_sites(
        self, kind: EngineKind, model: ModelSpec, layer_index: int | None
    ) -> Mapping[str, MigrationSite]:
        if kind is EngineKind.HEAD:
            return {HEAD_WEIGHT: MigrationSite(("norm.weight",))}
        down = MigrationSite((f"blocks.{layer_index}.up.weight",))
        return {
            **dict.fromkeys(("packed.weight", "mix.weight", "up.weight"), FIXED),
            "down.weight": down,
        }

    def reference_model(self, model: ModelSpec) -> ToyModel:
        with torch.device("meta"):
            return ToyModel(dict(model))


def product(
    name: str, in_size: int, out_sizes: tuple[int, ...], sources: tuple[str, ...]
) -> Parameter:
    shape = (in_size, sum(out_sizes))
    return Parameter(name, shape, sources, transposed=True, is_product=True, out_sizes=out_sizes)


def widths(model: ModelSpec) -> tuple[int, int]:
    return model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim


class Norm(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))

    def forward(self, states: Tensor) -> Tensor:
        wide = states.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPSILON)
        return (wide * scale * self.weight).to(states.dtype)


class Embed(nn.Module):
    def __init__(self, model: ModelSpec, dtype: torch.dtype) -> None:
        super().__init__()
        self.words = Table(model.vocab_size, model.hidden_size, dtype=dtype)

    def forward(self, input_ids: Tensor, position_ids: Tensor) -> Tensor:
        return self.words(input_ids)


class Layer(nn.Module):
    def __init__(self, model: ModelSpec, dtype: torch.dtype, attention: CachedAttention) -> None:
        super().__init__()
        size, inner, (query, key) = model.hidden_size, model.inner_width, widths(model)
        self.model, self.sizes, self.attention = model, (query, key, key), attention
        self.norm = Norm(size)
        self.packed = Projection(size, query + 2 * key, bias=False, dtype=dtype)
        self.mix = Projection(query, size, bias=False, dtype=dtype)
        self.up = Projection(size, inner, bias=False, dtype=dtype)
        self.down = Projection(inner, size, bias=False, dtype=dtype)

    def forward(
        self,
        hidden_states: Tensor,
        past_key: Tensor,
        past_value: Tensor,
        write_indices: Tensor,
        attention_mask: Tensor,
        position_ids: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        states = self.norm(hidden_states)
        query, key, value = (
            part.unflatten(-1, (-1, self.model.head_dim)).transpose(1, 2)
            for part in self.packed(states).split(self.sizes, dim=-1)
        )
        theta = self.model.rope_theta
        if theta is not None:
            assert position_ids is not None
            query, key = (rotated(part, position_ids, theta) for part in (query, key))
        attended, *present = self.attention(
            query, key, value, past_key, past_value, write_indices, attention_mask
        )
        mixed = self.mix(attended.transpose(1, 2).flatten(2))
        return hidden_states + mixed + self.down(F.relu(self.up(states))), *present


def rotated(states: Tensor, position_ids: Tensor, theta: float) -> Tensor:
    """Rotate [B, N, S, D] at positions [B, S], halves against each other."""
    half = states.shape[-1] // 2
    rates = theta ** (torch.arange(half) / -half)  # [D / 2]
    angles = position_ids[:, None, :, None].float() * rates  # [B, 1, S, D / 2]
    cos, sin = angles.cos().to(states.dtype), angles.sin().to(states.dtype)
    first, second = states[..., :half], states[..., half:]
    return torch.cat([first * cos - second * sin, first * sin + second * cos], -1)


class Head(nn.Module):
    def __init__(self, model: ModelSpec, dtype: torch.dtype) -> None:
        super().__init__()
        self.norm = Norm(model.hidden_size)
        self.lm_head = Projection(model.hidden_size, model.vocab_size, bias=False, dtype=dtype)

    def forward(self, hidden_states: Tensor, row_positions: Tensor) -> Tensor:
        rows = hidden_states.flatten(0, 1).index_select(0, row_positions)
        return self.lm_head(self.norm(rows)).float()


class ToyModel(nn.Module):
    """The same model written again, without a cache: one row, complex rotations, loops."""

    def __init__(self, facts: Mapping[str, Any]) -> None:
        super().__init__()
        self.heads, self.shared = facts["num_heads"], facts["num_heads"] // facts["num_kv_heads"]
        self.theta = facts["rope_theta"]
        size, width, inner = facts["hidden_size"], facts["head_dim"], facts["inner_width"]
        query, key = self.heads * width, facts["num_kv_heads"] * width
        sizes = {"query": (size, query), "key": (size, key), "value": (size, key)}
        sizes |= {"mix": (query, size), "up": (size, inner), "down": (inner, size)}
        self.words = nn.Embedding(facts["vocab_size"], size)
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {"norm": nn.RMSNorm(size, eps=EPSILON)}
                | {name: nn.Linear(*shape, bias=False) for name, shape in sizes.items()}
            )
            for _ in range(facts["num_layers"])
        )
        self.norm = nn.RMSNorm(size, eps=EPSILON)
        self.words_out = nn.Linear(size, facts["vocab_size"], bias=False)

    def forward(self, input_ids: Tensor) -> SimpleNamespace:
        everything = range(len(self.blocks))
        rows = [self.logits(row.tolist(), [everything] * len(row)) for row in input_ids]
        return SimpleNamespace(logits=torch.stack(rows))

    @torch.no_grad()
    def logits(self, tokens: Sequence[int], depths: Sequence[Sequence[int]]) -> Tensor:
        """Return [n, V] where token p runs the layers ``depths[p]``."""
        hidden = self.words(torch.tensor(tokens))  # [n, E]
        for index, block in enumerate(self.blocks):
            active = [place for place, layers in enumerate(depths) if index in layers]
            if active:
                hidden[active] = hidden[active] + self.residual(block, hidden[active], active)
        return self.words_out(self.norm(hidden))

    def residual(self, block: nn.ModuleDict, hidden: Tensor, places: Sequence[int]) -> Tensor:
        states = block["norm"](hidden)
        query, key, value = (block[name](states) for name in ("query", "key", "value"))
        parts = []
        width = query.shape[-1] // self.heads
        for head in range(self.heads):
            own = slice(head * width, (head + 1) * width)
            group = head // self.shared
            theirs = slice(group * width, (group + 1) * width)
            q, k = (self.turn(x, places) for x in (query[:, own], key[:, theirs]))
            scores = (q @ k.T / width**0.5).masked_fill(
                torch.ones(len(places), len(places)).triu(1).bool(), -torch.inf
            )
            parts.append(scores.softmax(-1) @ value[:, theirs])
        return block["mix"](torch.cat(parts, -1)) + block["down"](F.relu(block["up"](states)))

    def turn(self, states: Tensor, places: Sequence[int]) -> Tensor:
        """Rotate [n, D], as D / 2 complex numbers, by position times rate."""
        if self.theta is None:
            return states
        first, second = states.chunk(2, -1)
        rates = self.theta ** (-torch.arange(first.shape[-1]) / first.shape[-1])
        angles = torch.tensor(places)[:, None] * rates
        turned = torch.complex(first, second) * torch.polar(torch.ones_like(angles), angles)
        return torch.cat([turned.real, turned.imag], -1)


def write_toy(directory: Path, **changes: Any) -> ToyModel:  # noqa: ANN401
    """Write a random checkpoint and return its model."""
    config = CONFIG | changes
    model = ToyModel(dict(Toy().spec_from_config(config, "toy", None))).eval()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
            if parameter.dim() == 1:
                parameter += 1
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(config))
    save_file(
        model.state_dict() | {"training_step": torch.ones(1)}, directory / "model.safetensors"
    )
    return model
