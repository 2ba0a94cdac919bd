"""Pages that follow from the code and from figures: the reference, one model measured."""
