"""The GPU check: its figures and its page."""
