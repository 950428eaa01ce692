"""A report as text: one file for each format. A renderer rounds, escapes and colours; it never decides."""
