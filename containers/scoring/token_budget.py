"""How many tokens one forward of the reward model takes, where the configuration does not say."""

import torch

from containers.token_budgets import CPU_BATCH_TOKENS, gpu_batch_tokens


def device_batch_tokens(device: torch.device) -> int:
    """Tokens per forward for that device: measured for CPUs, estimated by the memory of GPUs.

    It rests on the memory that the device has, not on what is free: the same machine makes the same batches.
    """
    if device.type != "cuda":
        return CPU_BATCH_TOKENS
    gib = torch.cuda.get_device_properties(device).total_memory / 1024**3
    return gpu_batch_tokens(gib)
