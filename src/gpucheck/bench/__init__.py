"""The benchmarks. Each package holds the options, the measurement and the judge of one benchmark."""
