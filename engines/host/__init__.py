"""This machine and process: processor, GPUs, installed extras, console and workers."""
