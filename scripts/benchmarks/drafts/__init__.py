"""Drafts over texts that are not E2E's, and beside other engines' drafts."""
