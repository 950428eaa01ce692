"""How large a batch fits.

`options` → `plan` · `command`, `several` (each device), `estimate` (a device that is not here)
`hunt`, `after`: the loop that runs trials and records what happens · `in_time`: what there is time for
`history` → `answer`, `use`: what happened, and the answer that it comes to · `search`, `search_fit`: what to try next
`predict`, `predictor`: peaks without memory · `runner`, `outcome`, `budget`: a trial seen from this process
`trial`, `trial_gauge`, `trial_fake`: the children, which load torch · `trial_log`: `--resume`
"""
