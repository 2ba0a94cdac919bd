"""Tuning of LLaMA and its relatives."""
