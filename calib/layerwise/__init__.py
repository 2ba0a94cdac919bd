"""Run a checkpoint one layer at a time over real texts."""
