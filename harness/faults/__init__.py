"""Faults put into the engine from outside, through its seams: proof that the checks check."""
