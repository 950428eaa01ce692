"""How large a batch fits: the search (pure), what a failure was (pure), and trials in child processes."""
