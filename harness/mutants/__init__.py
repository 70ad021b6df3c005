"""Mutation testing of `engine/`: would a test notice if this line said something else? `make mutants`.

mutmut's operators make the mutants. Its runner starts pytest anew for each of them, which takes seconds here, so ours is one
pytest session that collects once, learns which test runs which line, and forks for each mutant with the mutated code in place.
"""
