"""`bench matmul`: how fast matrix products run, in which precision they really run, and whether they are right."""
