"""`rlhf approve` on the command line. Imports its own, late."""

import argparse

from flows.cli.options import DEMO_CONFIG, Commands, add_command, add_config_options

_DECISIONS = (
    ("approve", "approved", "the run may go on; for a model that met every rule"),
    ("waive", "waived", "the run may go on although a rule was missed; demands --reason"),
    ("reject", "rejected", "the run ends; demands --reason"),
)


def add_to(commands: Commands) -> None:
    """Add the subcommand."""
    parser = add_command(
        commands,
        "approve",
        approve,
        summary="show what waits for a person at a gate, or decide",
        example=f"rlhf approve -c {DEMO_CONFIG} --gate reward_model --approve --by Ada",
    )
    add_config_options(parser)
    parser.add_argument(
        "--gate", choices=("reward_model", "policy"), help="which gate (default: the one that waits, if only one does)"
    )
    decisions = parser.add_mutually_exclusive_group()
    for option, outcome, text in _DECISIONS:
        decisions.add_argument(f"--{option}", action="store_const", const=outcome, dest="outcome", help=text)
    parser.add_argument(
        "--by", default="", metavar="NAME", help="who decides; stands in the report (example: --by Ada)"
    )
    parser.add_argument("--reason", default="", metavar="TEXT", help="why; stands in the report")
    parser.add_argument(
        "--replace", action="store_true", help="take the place of an earlier decision; both stay on record"
    )


def approve(parsed: argparse.Namespace) -> int:
    """`rlhf approve`."""
    from tasks.config.loading import load_run_config
    from tasks.store.format import demand_known_store

    loaded = load_run_config(parsed.config, overrides=parsed.overrides, profile=parsed.profile)
    demand_known_store(loaded.config.store_dir)
    from flows.commands.approve import decide, show_waiting

    if parsed.outcome is None:
        return show_waiting(loaded, gate=parsed.gate)
    return decide(
        loaded, gate=parsed.gate, outcome=parsed.outcome, by=parsed.by, reason=parsed.reason, replace=parsed.replace
    )
