"""A trial child without torch, by a scenario: memory grows with the size, and some sizes end otherwise."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any

scenario = json.loads(sys.argv[1])
print("what the user's code prints", file=sys.stderr)


def say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


def listen() -> dict[str, Any]:
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    request: dict[str, Any] = json.loads(line)
    return request


def act(how: Any) -> dict[str, Any]:
    """Ends that are no answer."""
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "hang":
        time.sleep(600)
    if how == "exit":
        print("libgomp: Thread creation failed", file=sys.stderr, flush=True)
        sys.exit(1)
    if how == "eat":
        held = []
        for _ in range(100):
            held.append(bytearray(os.urandom(1) * 2**24))
            time.sleep(0.02)
        time.sleep(600)
    return {"ok": False, "stage": "step", **how}


setup = listen()
# What differs from device to device.
scenario.update(scenario.get("devices", {}).get(setup["device"], {}))
with open(scenario["log"], "a") as log:
    log.write(f"start {os.environ.get('MALLOC_ARENA_MAX', 'default')}\n")
with open(scenario["log"]) as log:
    starts = log.read().count("start")
if setup["device"] == "cpu":
    say({"baseline_bytes": scenario.get("baseline", 0)})
if "setup" in scenario and starts >= scenario.get("setup_from", 1) and starts <= scenario.get("setup_to", starts):
    say(act(scenario["setup"]))
    sys.exit(0)
say(
    {
        "ok": True,
        "device": {"id": setup["device"], "uuid": None, "name": "a fake"},
        "kind": "cpu",
        "integrated": False,
        "smallest_batch": 1,
        "parameter_bytes": 1000,
        "optimizer": "torch.optim.AdamW",
        "method": "VmHWM",
        **scenario.get("ready", {}),
    }
)
first = True
while True:
    request = listen()
    size = request["size"]
    with open(scenario["log"], "a") as log:
        log.write(f"trial {size}\n")
    how = scenario.get("at", {}).get(str(size))
    if how is None and size >= scenario.get("from", 2**40):
        how = scenario["beyond"]
    if how is not None and not (isinstance(how, dict) and how.get("ok")):
        say(act(how))
        continue
    peak = scenario.get("static", 0) + scenario.get("per_sample", 0) * size
    step_s = scenario.get("step_s", 0.001)
    time.sleep(step_s * request["steps"] if step_s > 0.01 else 0)
    say(
        {
            "ok": True,
            "peak_bytes": peak,
            "compute_peak_bytes": peak,
            "steps_s": [step_s] * request["steps"],
            "allocation_retries": 0,
            "retries_always": False,
            "swapped_bytes": 0,
            "state_bytes": 4000,
            "gradient_bytes": 1000,
            "optimizer_bytes": 2000,
            "loss": "mean square of the output",
            **scenario.get("always", {}),
            **(how or {}),
        }
    )
