"""The meaning of error texts: texts as people paste them, the table of those that are known, and what to do."""
