"""The changes between two reports: rows matched, ratios with intervals, findings."""
