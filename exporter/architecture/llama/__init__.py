"""The LLaMA family: model types whose layers differ only in data."""
