"""The LLaMA family: llama, mistral, qwen2 and qwen3, which differ only in data."""
