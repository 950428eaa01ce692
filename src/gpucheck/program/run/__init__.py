"""`gpucheck run`: a program as it runs, where its time goes, and what it copies and waits for."""
