"""Measure ranges of activations for static quantisation."""

from ...engines.importing import lazy_names

__getattr__ = lazy_names(__name__, {"calibrate": ".calibration"})
