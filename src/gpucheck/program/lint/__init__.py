"""`lint`: device mistakes in source, found without running it. Pure `ast`, no torch."""
