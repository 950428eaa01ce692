"""The largest batch size that fits.

`options` → `plan` → `command`: a search on one device, on each, or an estimate for one that is not here `loop`: runs
trials, records what happens, and what follows an answer · `schedule`: what there is time for `history` → `answer`,
`recommend`: what happened, and what it comes to · `search`: what to try next `predict`: peaks without memory ·
`runner`, `outcome`: a trial seen from this process · `trial_log`: `--resume` `trial`, `trial_fake`: the children, which
load torch
"""
