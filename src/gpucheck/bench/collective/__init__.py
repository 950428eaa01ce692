"""`bench collective`: how fast devices exchange data, in one machine or in many."""
