"""What the scheduler asks of a step, what it gets back, and how a plan is laid out over slots. Imports no torch."""
