"""The exporter's commands, one module a command; `skipdec.cli` mounts them."""
