"""Key and value memory."""
