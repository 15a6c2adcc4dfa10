"""Prompt sets: rows with a prompt for the policy and, where they have one, its reference answer."""
