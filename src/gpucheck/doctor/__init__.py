"""Why torch does not use the GPU: a ladder of conditions, the first broken rung, and the fix."""
