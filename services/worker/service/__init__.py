"""WorkerService: plans in, results out, and the thread between them that loads the model and runs its steps.

Imports no torch.
"""
