"""What is run, whoever asks: targets, their inputs and one step; built-in models. `spec` reads texts without torch."""
