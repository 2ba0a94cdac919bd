"""One layer at a time over real texts."""
