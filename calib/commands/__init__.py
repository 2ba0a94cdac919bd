"""Commands that make a model ready to skip, one module a command; `skipdec.cli` mounts them."""
