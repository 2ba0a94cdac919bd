"""The LLaMA family: model types whose layers differ only in data, and OLMo 2 beside them."""
