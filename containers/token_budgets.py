"""How many tokens are computed at a time where a configuration does not say: one rule for stages and plan."""

# More tokens at a time are no faster on a CPU, and take more memory.
CPU_PACK_TOKENS = 2048
# Two cores, float32: packed rows of half or twice as many tokens were no faster. See benchmarks/score_speed.md.
CPU_BATCH_TOKENS = 1024
# An estimate, not measured: 80 GiB take 40,960 tokens, of which a forward of 8B parameters in bfloat16 holds about
# 4 GiB beside its 16 GiB of weights; enough rows to fill the GPU, and room for a policy that trains on it.
_GPU_BATCH_TOKENS_PER_GIB = 512
_SMALLEST_GPU_BATCH_TOKENS = 4096
# Tokens of its own that a row of shared prompts has room for at first; twice as many whenever that is full.
FIRST_ROOM_TOKENS = 64
# Words of the vocabulary that TRL's head takes at a time.
WIDEST_HEAD_TILE = 32_768
# Logits that a head on a CPU makes at a time, few enough to stay in its caches; and the words that it takes at least.
_HEAD_TILE_LOGITS, _NARROWEST_HEAD_TILE = 2**20, 512
# The same of a head that is frozen. 222 tokens at a time over 151,000 words; a quarter of it took 1.3 times as long.
_FROZEN_HEAD_TILE_LOGITS = 2**25
# Of continuous batching, whose keys and values lie together; FlashAttention's kernels want multiples of 256.
PAGE_TOKENS = 256


def gpu_batch_tokens(memory_gib: float) -> int:
    """Tokens per forward of the reward model on a GPU. Example: 80 GiB give 40,960."""
    return max(_SMALLEST_GPU_BATCH_TOKENS, round(memory_gib) * _GPU_BATCH_TOKENS_PER_GIB)


def head_tile_words(num_tokens: int, *, on_gpu: bool) -> int:
    """Words of the vocabulary that the head of packed completions takes at a time; on a GPU as many as TRL's own."""
    if on_gpu:
        return WIDEST_HEAD_TILE
    return min(max(_HEAD_TILE_LOGITS // max(num_tokens, 1), _NARROWEST_HEAD_TILE), WIDEST_HEAD_TILE)


def frozen_head_tile_tokens(vocabulary_size: int) -> int:
    """Tokens whose logits a frozen head on a CPU makes at a time, over the whole vocabulary."""
    return max(_FROZEN_HEAD_TILE_LOGITS // vocabulary_size, 1)


def pair_pack_tokens(max_length: int, *, per_device_batch_size: int, on_gpu: bool) -> int:
    """Tokens of a full pack of pairs: as padded rows of a batch per device hold; on a CPU less, which is no slower."""
    rows = 2 * per_device_batch_size * max_length
    return rows if on_gpu else min(rows, CPU_PACK_TOKENS)


def completion_pack_tokens(
    max_prompt_length: int,
    max_completion_length: int,
    *,
    num_generations: int,
    per_device_batch_size: int,
    on_gpu: bool,
) -> int:
    """The same of completions; on a CPU no less than one prompt's with all of its own."""
    rows = per_device_batch_size * (max_prompt_length + max_completion_length)
    of_a_prompt = max_prompt_length + num_generations * max_completion_length
    return rows if on_gpu else min(rows, max(CPU_PACK_TOKENS, of_a_prompt))
