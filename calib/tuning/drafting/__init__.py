"""Train a draft layer, and measure how many drafts hold."""
