"""This machine and this process: processor, GPUs, installed extras, console, workers."""
