"""Prompts and steps in host memory."""
