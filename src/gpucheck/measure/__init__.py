"""The measuring loop and what is sampled beside it."""
