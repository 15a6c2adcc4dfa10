"""Demonstrations: rows with a conversation whose answers a model is fine-tuned to write."""
