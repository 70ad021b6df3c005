"""Proposals for speculative decoding: one small class for each method, made by the runner from its own token table."""
