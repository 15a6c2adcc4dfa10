"""The benchmarks that `evaluate_reward_model.suites` can name."""

from containers.evals.suites.arena import ARENA
from containers.evals.suites.base import Benchmark
from containers.evals.suites.judge_bench import JUDGE_BENCH
from containers.evals.suites.llmbar import LLMBAR
from containers.evals.suites.pairs import PAIRS
from containers.evals.suites.pku_safety import PKU_SAFETY
from containers.evals.suites.reward_bench import REWARD_BENCH
from containers.evals.suites.reward_bench_2 import REWARD_BENCH_2
from containers.evals.suites.rm_bench import RM_BENCH
from containers.evals.suites.truthfulqa import TRUTHFULQA
from containers.evals.suites.verbosity import VERBOSITY

BENCHMARKS: dict[str, Benchmark] = {
    benchmark.name: benchmark
    for benchmark in (
        PAIRS,
        REWARD_BENCH,
        REWARD_BENCH_2,
        RM_BENCH,
        JUDGE_BENCH,
        LLMBAR,
        ARENA,
        TRUTHFULQA,
        PKU_SAFETY,
        VERBOSITY,
    )
}
