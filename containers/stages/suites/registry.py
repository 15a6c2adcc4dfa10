"""The benchmarks that `evaluate_reward_model.suites` can name."""

from containers.stages.suites.arena import ARENA
from containers.stages.suites.base import Benchmark
from containers.stages.suites.judge_bench import JUDGE_BENCH
from containers.stages.suites.llmbar import LLMBAR
from containers.stages.suites.pairs import PAIRS
from containers.stages.suites.pku_safety import PKU_SAFETY
from containers.stages.suites.reward_bench import REWARD_BENCH
from containers.stages.suites.reward_bench_2 import REWARD_BENCH_2
from containers.stages.suites.rm_bench import RM_BENCH
from containers.stages.suites.truthfulqa import TRUTHFULQA
from containers.stages.suites.verbosity import VERBOSITY

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
