"""Settings of SEA students: the section "brine" of config.json, and configs of the families.

A student is a model of transformers whose attention is SEA (sparse linear attention with an estimated
attention mask; Lee et al., ICLR 2024) as Brine computes it. Section numbers refer to docs/method.md of Brine.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from transformers import (
    BertConfig,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    OPTConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

SECTION = "brine"
NEWEST_FORMAT = 1
FULL_ATTENTION = ("flash", "dense")

# How attention over blocks is computed: gathered tiles, or flex_attention of PyTorch. Not a setting of files.
BACKENDS = ("tiles", "flex")
# Defaults of a mask of blocks.
OF_BLOCKS = {
    "k": 480,
    "columns": 512,
    "parts": 4,
    "tile": 32,
    "decoder": "none",
    "prior": "none",
    "pooled_prior": True,
    "gates": "head",
    "gate_bias": 8.0,
}

CHOICES: dict[str, tuple[str, ...]] = {
    "mask": ("columns", "blocks"),
    "preset": ("paper", "lean", "light", "blocks"),
    "mode": ("per-query", "per-head", "per-batch", "causal-per-batch"),
    "decoder": ("paper", "lean", "none"),
    "decoder_norm": ("preset", "on", "off"),
    "mu_scope": ("head", "token"),
    "prior": ("performer", "learned", "none"),
    "gates": ("token", "head"),
    "features": ("relu", "softmax"),
    "identity_interpolation": ("bilinear", "nearest"),
    "widen": ("scores", "probabilities"),
}


@dataclass(frozen=True)
class Shape:
    """What the model fixes: H heads of queries, G of keys and values, head size d."""

    heads: int
    groups: int
    head_size: int
    max_positions: int
    causal: bool
    rotary: bool


@dataclass(frozen=True)
class DecoderShape:
    """The convolutional decoder of the map (section 1.5)."""

    width_reduction: int = 2
    channel_expansion: int = 4
    token_stride: int = 1
    depth: int = 2
    dilation: int = 1
    last_kernel: int = 3
    norm: bool = True


@dataclass(frozen=True)
class SeaSettings:
    """The keys of `brine.attention` in config.json; a key that a file does not have takes the default here."""

    k: int = 64
    columns: int = 64
    mask: str = "columns"
    block: int = 32
    sinks: int = 1
    local: int = 1
    parts: int = 1
    tile: int = 16
    survivors: int = 2
    opinion: float = 0.0
    preset: str | None = None
    mode: str = "causal-per-batch"
    decoder: str = "paper"
    width_reduction: int = 0
    channel_expansion: int = 0
    token_stride: int = 0
    depth: int = 0
    dilation: int = 0
    last_kernel: int = 0
    decoder_norm: str = "preset"
    mu_scope: str = "head"
    prior: str = "performer"
    prior_features: int = 64
    pooled_prior: bool = False
    prior_units: int = 0
    pooled: float = 0.0
    oversample: int = 1
    gates: str = "token"
    features: str = "relu"
    feature_eps: float = 0.0
    gate_bias: float = 0.0
    feature_divisor: float = 4.0
    max_positions: int = 0
    redraw_interval: int = 0
    identity_interpolation: str = "bilinear"
    widen: str = "scores"

    @property
    def decodes(self) -> bool:
        """Has nu and the convolutional decoder."""
        return self.decoder != "none"

    @property
    def mixes(self) -> bool:
        """Has Z (section 1.3): the decoder or the gates are computed from it."""
        return self.decodes or self.gates == "token"

    @property
    def performs(self) -> bool:
        """Has the Performer's features (section 1.2)."""
        return self.mixes or self.prior == "performer"

    @property
    def eps(self) -> float:
        """The floor of the Performer's features."""
        if self.feature_eps > 0:
            return self.feature_eps
        return 1e-4 if self.features == "softmax" else 1e-3

    def feature_count(self, head_size: int) -> int:
        """m, the number of the Performer's features."""
        return max(1, int(head_size * math.log(head_size) / self.feature_divisor))

    def decoder_shape(self, causal: bool) -> DecoderShape:
        """The decoder's sizes: those of its preset, unless they are given."""
        if self.decoder == "lean":
            preset = DecoderShape(width_reduction=4, channel_expansion=2, dilation=2, last_kernel=1)
        else:
            preset = DecoderShape(norm=causal)
        reduction = self.width_reduction or preset.width_reduction
        norm = preset.norm if self.decoder_norm == "preset" else self.decoder_norm == "on"
        return DecoderShape(
            width_reduction=reduction,
            channel_expansion=self.channel_expansion or preset.channel_expansion,
            token_stride=self.token_stride or (preset.token_stride if causal else reduction),
            depth=self.depth or preset.depth,
            dilation=self.dilation or preset.dilation,
            last_kernel=self.last_kernel or preset.last_kernel,
            norm=norm,
        )

    def validate(self, shape: Shape) -> None:
        """Raises ValueError that names the setting which is not valid, or not for this model."""
        for key, names in CHOICES.items():
            value = getattr(self, key)
            if value not in names and not (key == "preset" and value is None):
                raise ValueError(f"brine: {key} is {value!r}, known are {', '.join(names)}")
        for key in ("k", "columns", "prior_features", "oversample", "block", "parts", "tile", "survivors"):
            if getattr(self, key) < 1:
                raise ValueError(f"brine: {key} is {getattr(self, key)}, must be at least 1")
        if not 0 <= self.pooled <= 1:
            raise ValueError(f"brine: pooled is {self.pooled}, must be in [0, 1]")
        if shape.heads % shape.groups:
            raise ValueError(f"brine: {shape.groups} heads of keys do not divide {shape.heads} heads")
        if self.mask == "blocks":
            return self.validate_blocks(shape)
        if shape.causal and self.mode in ("per-head", "per-batch"):
            raise ValueError(f"brine: mode {self.mode} depends on later positions, this model is causal")
        if shape.causal and self.features == "softmax":
            raise ValueError("brine: softmax features see future keys, this model is causal")
        if not shape.causal and self.decoder == "lean":
            raise ValueError("brine: the lean decoder is for causal models")
        if not self.decodes:
            return
        decoder = self.decoder_shape(shape.causal)
        if self.columns % decoder.width_reduction:
            raise ValueError(
                f"brine: columns {self.columns} are not a multiple of width_reduction {decoder.width_reduction}"
            )

    def validate_blocks(self, shape: Shape) -> None:
        """The rest of validate() for a mask of blocks (section 8)."""
        if not shape.causal:
            raise ValueError("brine: mask blocks is for causal models, this one is an encoder")
        for key in ("sinks", "local"):
            if getattr(self, key) < 0:
                raise ValueError(f"brine: {key} is {getattr(self, key)}, must not be negative")
        if self.block % self.tile:
            raise ValueError(f"brine: tile {self.tile} does not divide block {self.block}")
        if self.parts > self.block:
            raise ValueError(f"brine: parts {self.parts} of a block of {self.block} keys")
        if not 0 <= self.opinion <= 1:
            raise ValueError(f"brine: opinion is {self.opinion}, must be in [0, 1]")
        only = {"decoder": "none", "gates": "head", "pooled_prior": True, "pooled": 0, "oversample": 1}
        for key, value in only.items():
            if getattr(self, key) != value:
                raise ValueError(f"brine: {key} is {getattr(self, key)!r}, mask blocks has {value!r}")
        if self.prior == "performer":
            raise ValueError("brine: prior is 'performer', mask blocks has 'none' or 'learned'")


def settings_of(config: PretrainedConfig) -> SeaSettings:
    """The settings of a student's config; raises ValueError for what is not a SEA student of Brine."""
    section = getattr(config, SECTION, None)
    if not isinstance(section, dict):
        raise ValueError(f'config.json has no section "{SECTION}": this is not a student of Brine')
    form = section.get("format")
    if not isinstance(form, int) or form > NEWEST_FORMAT:
        raise ValueError(f"brine: format {form!r} of config.json, these files read up to {NEWEST_FORMAT}")
    unknown = sorted(set(section) - {"attention", "format", "base_hash", "lora_rank"})
    if unknown:
        raise ValueError(f"brine: unknown keys {', '.join(unknown)} in config.json")
    if section.get("lora_rank"):
        raise ValueError("brine: low-rank additions (lora_rank) are not supported, export with --merge")
    attention = dict(section.get("attention") or {})
    method = attention.pop("method", None)
    if method != "sea":
        raise ValueError(f'brine: attention method {method!r} is not supported, only "sea"')
    if attention.get("mask") == "blocks":
        attention = OF_BLOCKS | attention
    known = {field.name for field in dataclasses.fields(SeaSettings)}
    unknown = sorted(set(attention) - known)
    if unknown:
        raise ValueError(f"brine: unknown settings of attention: {', '.join(unknown)}")
    return SeaSettings(**attention)


def shape_of(config: PretrainedConfig) -> Shape:
    """The shape of a model's attention."""
    heads = config.num_attention_heads
    positions = config.max_position_embeddings
    window = getattr(config, "sliding_window", None)
    if config.model_type == "mistral" and window:
        positions = min(positions, window)
    return Shape(
        heads=heads,
        groups=getattr(config, "num_key_value_heads", None) or heads,
        head_size=getattr(config, "head_dim", None) or config.hidden_size // heads,
        max_positions=positions,
        causal=config.model_type != "bert",
        rotary=config.model_type in ("llama", "mistral", "qwen2", "qwen3"),
    )


class SeaConfigMixin:
    """What the configs of all families add: files that name the class of the dense base.

    config.json of a student names the stock class in `architectures`, so that the directory is the dense base
    for who loads it without remote code, and a model of the family for Brine. Brine's class is in `auto_map`.
    """

    def to_dict(self) -> dict[str, Any]:
        output: dict[str, Any] = super().to_dict()  # type: ignore[misc]
        names = output.get("architectures") or []
        output["architectures"] = [name.removeprefix("Sea") for name in names]
        return output


class SeaLlamaConfig(SeaConfigMixin, LlamaConfig):
    model_type = "llama"


class SeaMistralConfig(SeaConfigMixin, MistralConfig):
    model_type = "mistral"


class SeaQwen2Config(SeaConfigMixin, Qwen2Config):
    model_type = "qwen2"


class SeaQwen3Config(SeaConfigMixin, Qwen3Config):
    model_type = "qwen3"


class SeaOPTConfig(SeaConfigMixin, OPTConfig):
    model_type = "opt"


class SeaGPT2Config(SeaConfigMixin, GPT2Config):
    model_type = "gpt2"


class SeaBertConfig(SeaConfigMixin, BertConfig):
    model_type = "bert"


for _config in (
    SeaLlamaConfig,
    SeaMistralConfig,
    SeaQwen2Config,
    SeaQwen3Config,
    SeaOPTConfig,
    SeaGPT2Config,
    SeaBertConfig,
):
    # save_pretrained() then writes these files and auto_map, also for a model that the package made.
    _config.register_for_auto_class()
