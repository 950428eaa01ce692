"""The largest batch size that fits. `command` starts the `loop`, which asks `search` for the next size, runs a trial in
a child process (`runner`, `trial`), and records the trial in `answer`."""
