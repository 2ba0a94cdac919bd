"""The runtime's commands, one module a command; `skipdec.cli` mounts them."""
