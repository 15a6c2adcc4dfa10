"""Memory and work of the language head: logits are computed tile by tile, never all at once.

Packed completions with a frozen head on a CPU use `containers.packing.logps`, everything else TRL's own head.
"""

from dataclasses import dataclass

from containers.contracts.hardware import GpuProfile
from containers.token_budgets import WIDEST_HEAD_TILE, frozen_head_tile_tokens, head_tile_words
from tasks.plan import estimates
from tasks.plan.estimates import Work
from tasks.plan.inputs.gpu_speed import gpu_speed
from tasks.plan.inputs.model_shape import ModelShape

# Tokens that TRL's head computes at a time.
_TILE_TOKENS = 4096
# Copies of a tile that exist at the same time. Triton works in place on a GPU; torch makes copies on a CPU.
_CPU_COPIES, _FROZEN_COPIES = 9, 3
_FLOAT_BYTES = 4
# Operations for each logit and number of the hidden state: the forward; in training also its repetition, which a
# frozen head on a CPU does not need, and the gradient of the inputs.
_JUDGING_OPERATIONS, _TRAINING_OPERATIONS, _FROZEN_OPERATIONS = 2, 6, 4
# Time of one core for each logit beside its products, to judge and to train: in TRL's tiles, which are too wide for
# the caches of a CPU, in the narrow ones of packs, and with a frozen head.
_WIDE_SECONDS, _NARROW_SECONDS, _FROZEN_SECONDS = (15e-9, 49e-9), (5e-9, 16e-9), (9e-9, 10e-9)
_CPU_FLOPS = 8e10


@dataclass(frozen=True)
class Head:
    """The language head of a stage that trains.

    Attributes:
        tokens: maximum in one forward.
        is_trained: with the weights below it; adapters leave it frozen.
        in_packs: whether completions are packed; else TRL's rows.
    """

    shape: ModelShape
    profile: GpuProfile
    tokens: int
    is_trained: bool
    in_packs: bool

    @property
    def memory_bytes(self) -> int:
        """Bytes of a tile and its copies, the gradient of the hidden states, and that of a trained head, in float32."""
        tokens, words = self.tile
        hidden = self.tokens * self.shape.hidden_size * _FLOAT_BYTES
        own = self.shape.vocab_size * self.shape.hidden_size * _FLOAT_BYTES if self.is_trained else 0
        return tokens * words * self._bytes_of_a_logit + hidden + own

    @property
    def tile(self) -> tuple[int, int]:
        """Tokens, and words of the vocabulary, whose logits are computed at a time."""
        vocabulary = self.shape.vocab_size
        if self.profile.num_gpus:
            # Memory for the whole width is reserved, however small the vocabulary.
            return min(self.tokens, _TILE_TOKENS), WIDEST_HEAD_TILE
        if self._is_in_one_go:
            return min(self.tokens, frozen_head_tile_tokens(vocabulary)), vocabulary
        width = head_tile_words(self.tokens, on_gpu=False) if self.in_packs else WIDEST_HEAD_TILE
        return min(self.tokens, _TILE_TOKENS), min(width, vocabulary)

    @property
    def tile_text(self) -> str:
        """How many logits exist at a time."""
        tokens, words = self.tile
        return f"{tokens:,} tokens by {words:,} words at a time"

    def training_work(self, *, tokens: float) -> Work:
        """Log-probabilities of `tokens`, with their gradient."""
        operations = _FROZEN_OPERATIONS if self._is_in_one_go else _TRAINING_OPERATIONS
        return self._work(tokens, operations=operations, cpu_seconds=self._cpu_seconds[1])

    def judging_work(self, *, tokens: float) -> Work:
        """Log-probabilities of `tokens`, without gradient."""
        return self._work(tokens, operations=_JUDGING_OPERATIONS, cpu_seconds=self._cpu_seconds[0])

    def _work(self, tokens: float, *, operations: int, cpu_seconds: float) -> Work:
        ranks, numbers = self.profile.num_processes, tokens * self.shape.vocab_size
        products = operations * self.shape.hidden_size
        if self.profile.num_gpus:
            return Work(products * numbers, products * numbers / (gpu_speed(self.profile).flops * ranks))
        seconds = numbers * (cpu_seconds + products / _CPU_FLOPS) / (self.profile.num_threads * ranks)
        return Work(products * numbers, seconds)

    @property
    def _cpu_seconds(self) -> tuple[float, float]:
        if self._is_in_one_go:
            return _FROZEN_SECONDS
        return _NARROW_SECONDS if self.in_packs else _WIDE_SECONDS

    @property
    def _is_in_one_go(self) -> bool:
        return self.in_packs and not self.is_trained and not self.profile.num_gpus

    @property
    def _bytes_of_a_logit(self) -> int:
        if self.profile.num_gpus:
            return estimates.value_bytes(self.profile)
        return _FLOAT_BYTES * (_FROZEN_COPIES if self._is_in_one_go else _CPU_COPIES)
