"""Count n-grams of a model's texts, as initial tables for drafts."""
