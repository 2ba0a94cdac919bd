"""The canonical graph of an engine, and its lowering to a target."""
