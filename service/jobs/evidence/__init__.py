"""Evidence that a job's result is correct and fast.

A job verifies the outputs of the compiled model. A race compares the time of the tuned model with
the time of the untuned model. A review repeats measurements on a second worker.
"""
