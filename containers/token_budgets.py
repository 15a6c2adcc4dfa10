"""Default numbers of tokens that are computed at a time: one rule for stages and plan."""

# On a CPU, more tokens at a time are no faster, and take more memory.
CPU_PACK_TOKENS = 2048
# Two cores, float32: packed rows of half or twice as many tokens were no faster. See benchmarks/score_speed.md.
CPU_BATCH_TOKENS = 1024
# An estimate, not measured: 80 GiB give 40,960 tokens. A forward of 8B parameters in bfloat16 then takes about 4 GiB
# beside 16 GiB of weights; enough rows to fill the GPU, with room for a policy that trains on it.
_GPU_BATCH_TOKENS_PER_GIB = 512
_SMALLEST_GPU_BATCH_TOKENS = 4096
# First room for a row's own tokens beside the shared prompt; doubled whenever it is full.
FIRST_ROOM_TOKENS = 64
# Of completions that are read for their probabilities at a time; one is always read whole.
LOGITS_BYTES = 1024**3
# Words of the vocabulary that TRL's head processes at a time.
WIDEST_HEAD_TILE = 32_768
# Logits that a head on a CPU makes at a time, few enough for its caches; and the fewest words that it processes.
_HEAD_TILE_LOGITS, _NARROWEST_HEAD_TILE = 2**20, 512
# The same for a frozen head: 222 tokens at a time over 151,000 words. A quarter of that took 1.3 times as long.
_FROZEN_HEAD_TILE_LOGITS = 2**25
# Page size of continuous batching's cache of keys and values; FlashAttention's kernels need multiples of 256.
PAGE_TOKENS = 256


def gpu_batch_tokens(memory_gib: float) -> int:
    """Tokens per forward of the reward model on a GPU. Example: 80 GiB give 40,960."""
    return max(_SMALLEST_GPU_BATCH_TOKENS, round(memory_gib) * _GPU_BATCH_TOKENS_PER_GIB)


def head_tile_words(num_tokens: int, *, on_gpu: bool) -> int:
    """Words of the vocabulary that the head of packed completions processes at a time; on a GPU the same as TRL."""
    if on_gpu:
        return WIDEST_HEAD_TILE
    return min(max(_HEAD_TILE_LOGITS // max(num_tokens, 1), _NARROWEST_HEAD_TILE), WIDEST_HEAD_TILE)


def frozen_head_tile_tokens(vocabulary_size: int) -> int:
    """Tokens whose logits a frozen head on a CPU computes at a time, over the whole vocabulary."""
    return max(_FROZEN_HEAD_TILE_LOGITS // vocabulary_size, 1)


def pair_pack_tokens(max_length: int, *, per_device_batch_size: int, on_gpu: bool) -> int:
    """Tokens of a full pack of pairs: those of a padded per-device batch; on a CPU fewer, which is no slower."""
    return example_pack_tokens(2 * max_length, per_device_batch_size=per_device_batch_size, on_gpu=on_gpu)


def example_pack_tokens(max_tokens: int, *, per_device_batch_size: int, on_gpu: bool) -> int:
    """The same for examples of which each has at most `max_tokens` in padded rows."""
    rows = per_device_batch_size * max_tokens
    return rows if on_gpu else min(rows, CPU_PACK_TOKENS)


def completion_pack_tokens(
    max_prompt_length: int,
    max_completion_length: int,
    *,
    num_generations: int,
    per_device_batch_size: int,
    on_gpu: bool,
) -> int:
    """Tokens of a full pack of completions; on a CPU at least those of one prompt with all of its completions."""
    rows = per_device_batch_size * (max_prompt_length + max_completion_length)
    of_a_prompt = max_prompt_length + num_generations * max_completion_length
    return rows if on_gpu else min(rows, max(CPU_PACK_TOKENS, of_a_prompt))
