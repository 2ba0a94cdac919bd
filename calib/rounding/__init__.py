"""Round int4 weights with regard to the data that they will see (GPTQ)."""

from ...engines.importing import lazy_names

__getattr__ = lazy_names(__name__, {"round_weights": ".rounding"})
