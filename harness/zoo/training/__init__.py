"""Trains the zoo's own models from nothing: documents, tokenizer, packing, model, optimizer, a loop that can be resumed."""
