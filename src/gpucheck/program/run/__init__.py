"""`gpucheck run` runs a program and reports where its time goes, what it copies and what it waits for."""
