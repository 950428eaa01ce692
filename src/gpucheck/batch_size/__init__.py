"""The largest batch size that fits.

- `options` → `command`: a search on one device, or an estimate for a device that is not here
- `loop`: runs trials within the time budget, and records them in the history of `answer`
- `search`: chooses the next size to try
- `runner`, `outcome`: the parent's side of a trial
- `trial`, `trial_fake`: the children, which load torch
- `answer`: the trials of a search, and its result
"""
