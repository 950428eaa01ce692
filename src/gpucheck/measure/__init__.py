"""The measuring loop, and the telemetry that is sampled during it."""
