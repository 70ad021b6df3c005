"""Prompts and problems, each with its origin."""
