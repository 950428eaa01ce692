"""Render a report as text. Each format has its own file. A renderer rounds, escapes and colours, but never decides."""
