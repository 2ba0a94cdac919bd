"""The GPU check: its figures, and the page that they become."""
