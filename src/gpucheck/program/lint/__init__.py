"""`lint` finds device mistakes in source without running it. It uses `ast` and not torch."""
