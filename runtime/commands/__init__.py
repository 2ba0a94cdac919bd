"""The runtime's commands, one module per command; `skipdec.cli` loads only the one that runs."""
