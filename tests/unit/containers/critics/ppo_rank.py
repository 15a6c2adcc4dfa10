"""One rank of a PPO update in minibatches: `python ppo_rank.py RANK RANKS RENDEZVOUS START OUTPUT`.

The first rank saves the gradients of policy and critic in each update of a rollout, and the critic's curves.
"""

import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from containers.contracts.schedule import Minibatches
from containers.packing.logps import completion_packs
from containers.rollouts.rollout import Rollout
from tests.unit.containers.critics.ppo_cases import make_case

if __name__ == "__main__":
    rank, ranks, rendezvous, start, output = sys.argv[1:]
    if int(ranks) > 1:
        # accelerate demands an address, and then takes the group that is there.
        own_environment = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank, "MASTER_ADDR": "127.0.0.1"}
        os.environ.update(own_environment)
        meeting = f"file://{rendezvous}"
        distributed.init_process_group("gloo", init_method=meeting, rank=int(rank), world_size=int(ranks))
    case = make_case(Path(start), prompt_lengths=(4, 9, 3, 12), siblings=2)
    case.critic.maximum_norm = 1e9
    case.critic.optimizer.step = lambda: None  # type: ignore[method-assign] - gradients are compared, not weights
    minibatches, found = Minibatches(2, 2), list[Any]()
    step = case.step(partial(completion_packs, max_tokens=40), updates=minibatches.updates)
    share = len(case.completions) // int(ranks)
    own, whole = case.batch(range(int(rank) * share, (int(rank) + 1) * share)), case.batch()
    own.first_row = int(rank) * share
    own.rewards, own.lengths, own.ended = whole.rewards, whole.lengths, whole.ended
    own.takes_part, own.divides = whole.takes_part, whole.divides
    model: Any = case.accelerator.prepare(case.policy)
    step.prepare(model, own)
    batch = own.gathered(case.prompts, case.completions)
    rollout = Rollout(batch, minibatches, seed="7 8", rank=int(rank), num_ranks=int(ranks))
    while not rollout.is_used_up:
        case.clear()
        step.update(model, rollout.next_batch())
        found.append((*case.gradients(), case.critic.take_curves()))
    if rank == "0":
        torch.save(found, output)
    if int(ranks) > 1:
        distributed.barrier()
        os._exit(0)  # gloo may abort a process that ends while its threads run
