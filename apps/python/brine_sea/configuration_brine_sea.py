"""Settings of SEA students: the section "brine" of config.json, and configs of the families.

A student is a model of transformers whose attention is SEA (sparse linear attention with an estimated
attention mask; Lee et al., ICLR 2024) as Brine computes it. Section numbers refer to docs/method.md of Brine.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, ClassVar

import transformers
from transformers import PretrainedConfig

# The families of students besides Bert, by the names of their classes.
DECODERS = ("Llama", "Mistral", "Qwen2", "Qwen3", "OPT", "GPT2")
SECTION = "brine"
NEWEST_FORMAT = 1

# How attention over blocks is computed: gathered tiles, or flex_attention of PyTorch. Not a setting of files.
BACKENDS = ("tiles", "flex")
MAX_TILE_ROWS = 64
# Settings of blocks in an earlier version, which had them in the method "sea".
OLD_KEYS = {"mask", "block", "sinks", "local", "parts", "tile", "survivors", "opinion"}

# Settings of earlier versions, with the values that have their meaning now.
FIXED: dict[str, tuple[Any, ...]] = (
    dict(width_reduction=(2, 0), channel_expansion=(4, 0), token_stride=(0,), depth=(2, 0), dilation=(1, 0))
    | dict(last_kernel=(3, 0), decoder_norm=("preset",), max_positions=(0,), redraw_interval=(0,))
    | dict(pooled=(0,), oversample=(1,))
)

# What a preset decides (docs/method.md), of keys that are not given.
PRESETS: dict[Any, dict[str, Any]] = {
    "paper": {"prior": "none"},
    "light": {"decoder": "none", "gates": "head", "prior": "learned", "pooled_prior": True, "prior_units": 4}
    | {"columns": 256, "gate_bias": 4.0},
}

CHOICES: dict[str, tuple[str, ...]] = {
    "preset": ("paper", "light"),
    "mode": ("per-query", "per-head", "per-batch", "causal-per-batch"),
    "decoder": ("paper", "none"),
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


def check_integer(name: str, value: Any, least: int = 1) -> None:
    """Raises ValueError that names what is not an integer or too small."""
    if not isinstance(value, int) or value < least:
        wanted = f"at least {least}" if isinstance(value, int) else "an integer"
        raise ValueError(f"brine: {name} is {value!r}, must be {wanted}")


# The convolutional decoder of the map (section 1.5): c_s and c_h.
WIDTH_REDUCTION, CHANNEL_EXPANSION = 2, 4


@dataclass(frozen=True)
class SeaSettings:
    """The keys of `brine.attention` in config.json; a key that a file does not have takes the default here."""

    method: ClassVar[str] = "sea"

    k: int = 64
    columns: int = 64
    preset: str | None = None
    mode: str = "causal-per-batch"
    decoder: str = "paper"
    mu_scope: str = "head"
    prior: str = "performer"
    prior_features: int = 64
    pooled_prior: bool = False
    prior_units: int = 0
    gates: str = "token"
    features: str = "relu"
    feature_eps: float = 0.0
    gate_bias: float = 0.0
    feature_divisor: float = 4.0
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
    def has_performer(self) -> bool:
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

    def validate(self, shape: Shape) -> None:
        """Raises ValueError that names the setting which is not valid, or not for this model."""
        for key, names in CHOICES.items():
            value = getattr(self, key)
            if value not in names and not (key == "preset" and value is None):
                raise ValueError(f"brine: {key} is {value!r}, known are {', '.join(names)}")
        for key in ("k", "columns", "prior_features"):
            check_integer(key, getattr(self, key))
        check_integer("prior_units", self.prior_units, 0)
        for key, above in (("feature_divisor", True), ("feature_eps", False), ("gate_bias", None)):
            value = getattr(self, key)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
                raise ValueError(f"brine: {key} is {value!r}, must be a number")
            if above is not None and (value <= 0 if above else value < 0):
                raise ValueError(f"brine: {key} is {value!r}, must be " + ("above 0" if above else "at least 0"))
        if self.pooled_prior not in (True, False):
            raise ValueError(f"brine: pooled_prior is {self.pooled_prior!r}, must be true or false")
        if shape.heads % shape.groups:
            raise ValueError(f"brine: {shape.groups} heads of keys do not divide {shape.heads} heads")
        if shape.causal and self.mode in ("per-head", "per-batch"):
            raise ValueError(f"brine: mode {self.mode} depends on later positions, this model is causal")
        if shape.causal and self.features == "softmax":
            raise ValueError("brine: softmax features see future keys, this model is causal")
        if self.decodes and self.columns % WIDTH_REDUCTION:
            raise ValueError(f"brine: columns {self.columns} are not a multiple of {WIDTH_REDUCTION}")


@dataclass(frozen=True)
class BlockSettings:
    """The same of the method `blocks` (section 8)."""

    method: ClassVar[str] = "blocks"
    k: int = 576
    block: int = 32
    tile: int = 32
    sinks: int = 1
    local: int = 1
    candidates: int = 96
    columns: int = 1024

    @property
    def chosen(self) -> int:
        """n, the blocks that a row chooses; 0: it keeps a window."""
        return max(0, -(-self.k // self.block) - self.sinks - self.local - 1)

    def validate(self, shape: Shape) -> None:
        """Raises ValueError that names the setting which is not valid, or not for this model, and what is valid."""
        if not shape.causal:
            raise ValueError("brine: attention blocks is for causal models, this one is an encoder: use sea")
        if shape.heads % shape.groups:
            raise ValueError(f"brine: {shape.groups} heads of keys do not divide {shape.heads} heads")
        for field in dataclasses.fields(self):
            least = 0 if field.name in ("sinks", "local", "candidates") else 1
            check_integer(field.name, getattr(self, field.name), least)
        if self.block % self.tile or self.tile > MAX_TILE_ROWS:
            fit = max(r for r in range(1, min(self.block, MAX_TILE_ROWS) + 1) if self.block % r == 0)
            raise ValueError(f"brine: tile {self.tile} must divide block {self.block}, such as {fit}")
        # As Brine has it: a student with the default k is valid for models that are shorter.
        max_k = max(BlockSettings.k, -(-shape.max_positions // self.block) * self.block)
        if self.k > max_k:
            raise ValueError(f"brine: k is {self.k}, the model has {shape.max_positions} positions: at most {max_k}")
        if self.candidates < self.chosen:
            raise ValueError(
                f"brine: candidates is {self.candidates}, k = {self.k} chooses {self.chosen} blocks:"
                " give at least as many candidates, or a smaller k"
            )


Settings = SeaSettings | BlockSettings


def settings_of(config: PretrainedConfig) -> Settings:
    """The settings of a student's config; raises ValueError for what is not a student of Brine."""
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
    kinds: dict[Any, type[Settings]] = {kind.method: kind for kind in (SeaSettings, BlockSettings)}
    if method not in kinds:
        raise ValueError(f"brine: attention method {method!r} is not supported, only {', '.join(kinds)}")
    if method == "sea":
        if attention.get("mask") == "columns":  # such files have the others, too
            attention = {key: x for key, x in attention.items() if key not in OLD_KEYS}
        if attention.get("preset") == "blocks" or OLD_KEYS & set(attention):
            raise ValueError(
                "brine: blocks of an earlier version (sea with mask blocks) are not supported:"
                " distil the teacher again with `brine distill --attention blocks`"
            )
        for key, values in FIXED.items():
            value = attention.pop(key, values[0])
            if value not in values:
                raise ValueError(f"brine: {key} = {value!r} is of an earlier version; now it is {values[0]!r}")
        attention = PRESETS.get(str(attention.get("preset")), {}) | attention
    known = {field.name for field in dataclasses.fields(kinds[method])}
    unknown = sorted(set(attention) - known)
    if unknown:
        raise ValueError(f"brine: unknown settings of attention: {', '.join(unknown)}")
    return kinds[method](**attention)


def is_of_block(name: str) -> bool:
    """Whether a tensor of a student is one that its dense base does not have."""
    return ".sea." in name or ".blocks." in name


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
        rotary=getattr(config, "rope_parameters", None) is not None,
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


def config_of_students(family: str) -> type[PretrainedConfig]:
    """The config class of a family's students, which files name as a class of this module."""
    base = getattr(transformers, f"{family}Config")
    names = {"__module__": __name__, "model_type": base.model_type}
    made: type[PretrainedConfig] = type(f"Sea{base.__name__}", (SeaConfigMixin, base), names)
    globals()[made.__name__] = made
    # save_pretrained() then writes these files and auto_map, also for a model that the package made.
    made.register_for_auto_class()
    return made


# By model_type.
CONFIGS = {made.model_type: made for made in map(config_of_students, (*DECODERS, "Bert"))}
