"""How many tokens one forward of the reward model takes, where the configuration does not say."""

import torch

# Two cores, float32: packed rows of half or twice as many tokens took 4 to 6 % longer. See benchmarks/score_speed.md.
CPU_BATCH_TOKENS = 1024
# An estimate, not measured: 80 GiB take 40,960 tokens, of which a forward of 8B parameters in bfloat16 holds about
# 4 GiB beside its 16 GiB of weights; enough rows to fill the GPU, and room for a policy that trains on it.
_GPU_BATCH_TOKENS_PER_GIB = 512
_SMALLEST_GPU_BATCH_TOKENS = 4096


def device_batch_tokens(device: torch.device) -> int:
    """Tokens per forward for that device: measured for CPUs, estimated by the memory of GPUs.

    It rests on the memory that the device has, not on what is free: the same machine makes the same batches.
    """
    if device.type != "cuda":
        return CPU_BATCH_TOKENS
    gib = torch.cuda.get_device_properties(device).total_memory / 1024**3
    return gpu_batch_tokens(gib)


def gpu_batch_tokens(memory_gib: float) -> int:
    """The estimate for a GPU. Example: 80 GiB give 40,960."""
    return max(_SMALLEST_GPU_BATCH_TOKENS, round(memory_gib) * _GPU_BATCH_TOKENS_PER_GIB)
