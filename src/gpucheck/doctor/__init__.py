"""The command `doctor`: why torch does not use the GPU. It finds the first broken stage and its fix."""
