"""Prepare an environment beside the project, once, and start a command in it. Standard library only.

An environment is made of layers in `.gpucheck-env/`. Each layer is a venv that is complete or not there: its stamp,
`ready.json`, is written last, and a layer without one is thrown away. The first layer holds what gpucheck needs; the
second, `-dev`, holds what the tests need on top. Where the Python at hand has a torch, the first layer looks into that
Python's packages (a .pth file names their folders) and holds only what is missing there: nothing outside
`.gpucheck-env/` is written, and the torch there is neither replaced nor fetched.

What is said here goes to stderr, pip's words too: stdout belongs to the command.

The modules read on Python 3.7, so that a Python too old for gpucheck is told so in a sentence. `start` and what it
imports at its top runs on every start, `making` and `lock` only when something must be made.
"""
