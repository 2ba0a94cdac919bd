"""Reproduce the paper's table: columns, runs, evaluation, tables."""
