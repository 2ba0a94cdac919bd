"""N-grams of a model's texts, with which drafts begin."""
