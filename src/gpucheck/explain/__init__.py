"""Explain error texts as people paste them: the table of known texts, and the advice for each."""
