"""The command line: parse the arguments, call the command, and finish with output and exit status."""
