"""One module for each way to draft: its training objective, its checkpoint format, and how it proposes."""
