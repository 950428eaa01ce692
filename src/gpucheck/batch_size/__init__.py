"""The largest batch size that fits.

- `options` → `command`: a search on one device, on each, or an estimate for a device that is not here
- `loop`: runs trials within the time budget, and records them in the history of `answer`
- `search`, `predict`: the next size to try, and peaks without memory
- `runner`, `outcome`: a trial seen from this process; `trial`, `trial_fake`: the children, which load torch
- `answer`: what happened in a search, and the result that it comes to
"""
