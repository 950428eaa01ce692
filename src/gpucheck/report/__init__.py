"""The data types of a report, frozen, to and from JSON; no I/O."""
