"""The command line: parse, call, finish."""
