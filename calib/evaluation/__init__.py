"""Measure what layer skipping costs and gains: texts, metrics, times."""

from ...engines.importing import lazy_names

__getattr__ = lazy_names(__name__, {"evaluate": ".evaluation"})
