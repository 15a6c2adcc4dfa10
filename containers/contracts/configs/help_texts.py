"""Help of keys that several stages have."""

LONGEST = "Tokens of prompt plus completion; longer ones are left out and counted"
CHECKPOINTING = "Compute activations again in the backward pass: less memory, more time"
OPTIMIZER = "AdamW and its learning rate"
SCHEDULE = "How long, how often evaluated and saved"
RESAMPLES = "Resamples of the bootstrap behind the intervals"
