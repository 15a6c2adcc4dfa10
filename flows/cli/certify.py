"""`rlhf certify`: judge a reward model from anywhere like that of a run."""

import argparse

from flows.certify import certifying_run
from flows.cli.options import Command, add_config_options, add_model_options
from flows.cli.run import run_pipeline


def _add_options(parser: argparse.ArgumentParser) -> None:
    add_model_options(parser)
    add_config_options(parser)


def _run(parsed: argparse.Namespace) -> int:
    loaded = certifying_run(
        parsed.model, parsed.config, settings=parsed.overrides, profile=parsed.profile, base=parsed.base
    )
    return run_pipeline(loaded, command=parsed.command_line)


CERTIFY = Command(_add_options, _run)
