"""`rlhf certify`, `rlhf score` and `rlhf compare` on the command line. Imports its own, late."""

import argparse
from pathlib import Path

from flows.cli.options import DEMO_CONFIG, Commands, add_command, add_config_options


def add_to(commands: Commands) -> None:
    """Add the subcommands."""
    certify = add_command(
        commands,
        "certify",
        _certify,
        summary="judge a reward model on disk or on the hub by a run's data, suites and gate, wherever it was trained",
        example=f"rlhf certify -m outputs/demo/artifacts/train_reward_model/merged -c {DEMO_CONFIG}",
    )
    _add_model_options(certify)
    add_config_options(certify)
    _add_score(commands)
    compare = add_command(
        commands,
        "compare",
        _compare,
        summary="show reward models side by side by their certificates, each against the first, and what is chance",
        example="rlhf compare outputs/helpsteer3-qwen3-8b outputs/higher-lr",
    )
    compare.add_argument(
        "certificates",
        nargs="+",
        type=Path,
        metavar="FOLDER",
        help="output folders of runs, or certificate.json files; the others are compared with the first",
    )
    compare.add_argument(
        "--page",
        type=Path,
        default=Path("outputs/comparison.html"),
        metavar="FILE",
        help="where the page with the plot goes (default: %(default)s)",
    )


def _add_model_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-m",
        "--model",
        required=True,
        metavar="MODEL",
        help="its folder, org/name@revision on the hub, a LoRA adapter in either place, or the output folder of a run",
    )
    parser.add_argument(
        "--base",
        metavar="MODEL",
        help="base model of an adapter, where it is not the one that the adapter names: a folder, or org/name@revision",
    )


def _add_score(commands: Commands) -> None:
    parser = add_command(
        commands,
        "score",
        _score,
        summary="score any file with any reward model: pairs, conversations, prompts with one response or several",
        example="rlhf score -m outputs/demo outputs/demo/data/labelled_pairs.jsonl",
    )
    _add_model_options(parser)
    parser.add_argument("file", metavar="FILE", help="jsonl, jsonl.gz or parquet, or a folder of such files")
    parser.add_argument(
        "--out",
        default="scores.jsonl",
        metavar="FILE",
        help="where the scores go, a line for each row, in order; - is standard output (default: %(default)s)",
    )
    parser.add_argument(
        "-c",
        "--config",
        type=Path,
        metavar="FILE",
        help="take profile, runtime, image and max_length of this run (default: none is needed)",
    )
    parser.add_argument(
        "--profile",
        metavar="NAME",
        help="GPU profile: a name in configs/gpu_profiles or a YAML file (default: the run's, else cpu)",
    )
    parser.add_argument(
        "--runtime",
        choices=("auto", "docker", "process"),
        help="with what the scoring is started (default: the run's, else auto)",
    )
    parser.add_argument(
        "--max-length",
        type=int,
        metavar="TOKENS",
        help="longest conversation; longer ones are left out and counted (default: the run's, else the model's "
        "positions)",
    )
    parser.add_argument(
        "--batch-size", type=int, metavar="NUMBER", help="conversations per forward, at most (default: 64)"
    )
    parser.add_argument(
        "--batch-tokens", type=int, metavar="TOKENS", help="tokens per forward, at most (default: by the device)"
    )
    parser.add_argument(
        "--normalise",
        action="store_true",
        help="also give (score - mean) / standard deviation, as saved with a model that was trained here",
    )


def _score(parsed: argparse.Namespace) -> int:
    from flows.commands.score import score

    return score(
        parsed.model,
        parsed.file,
        out=parsed.out,
        base=parsed.base,
        config=parsed.config,
        profile=parsed.profile,
        runtime=parsed.runtime,
        settings={
            "max_length": parsed.max_length,
            "batch_size": parsed.batch_size,
            "batch_tokens": parsed.batch_tokens,
            "normalise": parsed.normalise,
        },
    )


def _certify(parsed: argparse.Namespace) -> int:
    from flows.certify import certifying_run

    # Its mistakes are told before the heavy imports.
    loaded = certifying_run(
        parsed.model, parsed.config, settings=parsed.overrides, profile=parsed.profile, base=parsed.base
    )
    from flows.commands.run import run_pipeline

    return run_pipeline(loaded, command=parsed.command_line)


def _compare(parsed: argparse.Namespace) -> int:
    from rich.console import Console

    from flows.commands.compare import compare

    return compare(parsed.certificates, Console(highlight=False), page=parsed.page)
