"""How an OPT is tuned."""
