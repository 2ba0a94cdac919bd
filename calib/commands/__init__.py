"""Commands that make a model ready to skip, one per module; `skipdec.cli` mounts them."""
