"""Runs prompts and steps through the engines that their plans name."""
