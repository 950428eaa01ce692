"""Three commands to try, for the end of each help page. A test reads every one with the command's own parser."""

from __future__ import annotations

EXAMPLES: dict[str, tuple[str, str, str]] = {
    "gpucheck": (
        "gpucheck status",
        "gpucheck doctor",
        "gpucheck smoke --output smoke.xml",
    ),
    "gpucheck status": (
        "gpucheck status",
        "gpucheck --python ~/venv/bin/python",
        "gpucheck status --json --output status.json",
    ),
    "gpucheck devices": (
        "gpucheck devices",
        "gpucheck devices --processes --device cuda:1",
        "gpucheck devices --watch 2s",
    ),
    "gpucheck memory": (
        "gpucheck memory",
        "gpucheck memory --device cuda:1",
        "gpucheck memory --device cuda:1 --json",
    ),
    "gpucheck doctor": (
        "gpucheck doctor",
        "gpucheck doctor --python ~/venv/bin/python --skip load",
        "gpucheck doctor --require cuda --bundle report.zip",
    ),
    "gpucheck explain": (
        'gpucheck explain "CUDA out of memory"',
        "python train.py 2>&1 | gpucheck explain",
        "gpucheck explain oom.cuda",
    ),
    "gpucheck smoke": (
        "gpucheck smoke",
        "gpucheck smoke --require cuda --min-devices 8 --output smoke.xml",
        "gpucheck smoke --only training --skip training.autocast",
    ),
    "gpucheck stress": (
        "gpucheck stress --duration 10m",
        "gpucheck stress --only products,memory --dtype float16 --fill 80%",
        "gpucheck stress --device cuda:3 --duration 1h --output stress.json",
    ),
    "gpucheck model": (
        "gpucheck model net.py:make --input image:3x224x224:float32",
        "gpucheck model net.py:make --input ids:1024:int64:0..50256 --train",
        "gpucheck model transformer --depth 2",
    ),
    "gpucheck run": (
        "gpucheck run train.py --epochs 1",
        "gpucheck run --output run.json -m package.train",
        "gpucheck run --dry cuda:80GiB train.py",
    ),
    "gpucheck lint": (
        "gpucheck lint .",
        "gpucheck lint train.py --output lint.sarif",
        "git show HEAD:train.py | gpucheck lint -",
    ),
    "gpucheck find-batch-size": (
        "gpucheck find-batch-size models.py:make_gpt --input ids:1024:int64:0..50256",
        "gpucheck find-batch-size convnet --amp bfloat16 --effective-batch 512",
        "gpucheck find-batch-size transformer --estimate --memory-limit 80GiB --device cuda",
    ),
    "gpucheck compare": (
        "gpucheck compare old.json new.json",
        "gpucheck compare old.json new.json --fail-if-slower 5%",
        "gpucheck compare old.json new.json --output changes.md",
    ),
    "gpucheck judge": (
        "gpucheck judge result.json",
        "gpucheck judge run1.json run2.json run3.json",
        "gpucheck judge result.json --config strict.toml --output result.xml",
    ),
    "gpucheck report": (
        "gpucheck report result.json --output page.html",
        "gpucheck report before.json after.json --output page.html",
        "gpucheck report /shared/checks --output fleet.html",
    ),
    "gpucheck fleet": (
        "srun --ntasks-per-node=1 gpucheck fleet check --gather /shared/checks",
        "gpucheck fleet judge /shared/checks",
        "gpucheck fleet judge /shared/checks --expect node[001-064] --into lists",
    ),
    "gpucheck fleet check": (
        "gpucheck fleet check",
        "srun --ntasks-per-node=1 gpucheck fleet check --gather /shared/checks",
        "gpucheck fleet check --prolog --within 60s --quiet",
    ),
    "gpucheck fleet judge": (
        "gpucheck fleet judge /shared/checks",
        "gpucheck fleet judge /shared/checks --expect node[001-064] --wait 10m --into lists",
        "gpucheck fleet judge job.log --expect 64 --output fleet.json",
    ),
    "gpucheck schema": (
        "gpucheck schema > gpucheck.schema.json",
        "gpucheck schema | python -m json.tool",
        "gpucheck schema | less",
    ),
    "gpucheck bench": (
        "gpucheck bench all --output today.json",
        "gpucheck bench transfer --device cuda:0",
        "gpucheck bench matmul --dtype bfloat16 --search",
    ),
    "gpucheck bench transfer": (
        "gpucheck bench transfer",
        "gpucheck bench transfer --size 64MiB,1GiB --direction h2d --host-memory pinned",
        "gpucheck bench transfer --min-gbps 20 --output transfer.xml",
    ),
    "gpucheck bench bandwidth": (
        "gpucheck bench bandwidth",
        "gpucheck bench bandwidth --size 256MiB,4GiB --device all",
        "gpucheck bench bandwidth --min-percent-of-peak 80%",
    ),
    "gpucheck bench matmul": (
        "gpucheck bench matmul --dtype bfloat16,float16",
        "gpucheck bench matmul --search --range 1024:16384:1024 --time-budget 2m",
        "gpucheck bench matmul --dtype bfloat16 --sustain 60s --min-tflops 400",
    ),
    "gpucheck bench overlap": (
        "gpucheck bench overlap",
        "gpucheck bench overlap --size 256MiB --direction h2d",
        "gpucheck bench overlap --device cuda:1 --output overlap.json",
    ),
    "gpucheck bench crossover": (
        "gpucheck bench crossover",
        "gpucheck bench crossover --only training --time-budget 1m",
        "gpucheck bench crossover --device cuda:1 --output crossover.json",
    ),
    "gpucheck bench collective": (
        "gpucheck bench collective",
        "gpucheck bench collective --only all-reduce --size 8GiB --min-busbw 400",
        "torchrun --nproc-per-node 8 --no-python gpucheck bench collective --only all-reduce",
    ),
    "gpucheck bench all": (
        "gpucheck bench all --output today.json",
        "gpucheck bench all --only transfer,bandwidth --time-budget 30s",
        "gpucheck bench all --baseline yesterday.json --fail-if-slower 5%",
    ),
}
