"""What a bundle is and how one engine runs."""
