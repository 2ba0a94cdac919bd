"""Other engines beside skipdec, and the verdict on them."""
