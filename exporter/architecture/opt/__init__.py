"""Everything that is OPT: its structure, weights, modules, published sizes."""
