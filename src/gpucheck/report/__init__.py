"""The frozen data types of a report, and their conversion to and from JSON. No I/O."""
