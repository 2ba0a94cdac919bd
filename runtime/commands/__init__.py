"""The runtime's commands, one module a command; `skipdec.cli` loads the one that runs."""
