"""Judges of a policy: what each says of pairs of completions, the figures, and what it had to do with the training."""
