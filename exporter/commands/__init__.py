"""The exporter's commands, one module each; `skipdec.cli` registers them."""
