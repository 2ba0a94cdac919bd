"""The paper's table made again: columns, runs, evaluation, tables."""
