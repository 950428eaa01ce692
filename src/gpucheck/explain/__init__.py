"""What an error text means: texts as people paste them, the table of those that are known, and what to do."""
