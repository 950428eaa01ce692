"""`gpucheck bench …`: a file for each benchmark."""
