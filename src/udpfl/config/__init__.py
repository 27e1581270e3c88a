"""The configuration of a run: every key, what it means, what it may be, and how it is read.

A configuration is a TOML file. `load` puts it together from layers, such as a file and a mapping
over it, and `key=value` overrides; `dump` writes it so that `load` reads back exactly the same one.
"""

from udpfl.config.documents import example, schema
from udpfl.config.models import (
    Config,
    DataConfig,
    ModelConfig,
    PrivacyConfig,
    TrainingConfig,
    per_client,
)
from udpfl.config.reading import Layer, apply, dump, load, read
from udpfl.config.section import Count, Fraction, Options, Positive, Section, Several, Text

__all__ = [
    "Config",
    "Count",
    "DataConfig",
    "Fraction",
    "Layer",
    "ModelConfig",
    "Options",
    "Positive",
    "PrivacyConfig",
    "Section",
    "Several",
    "Text",
    "TrainingConfig",
    "apply",
    "dump",
    "example",
    "load",
    "per_client",
    "read",
    "schema",
]
