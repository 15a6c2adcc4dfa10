"""One rank of a step on pairs: `python offline_rank.py RANK RANKS RENDEZVOUS START OUTPUT LOSS`.

The examples are dealt to the ranks in turn, so that they have unlike numbers of pairs and packs. The first rank saves
the gradient, the loss and the figures.
"""

import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import distributed

from containers.algorithms.offline_step import OfflineStep
from containers.algorithms.preference_objective import Preference
from containers.algorithms.reference_logps import computed_reference, with_reference
from containers.contracts.configs.parts.preference_losses import PREFERENCE_LOSSES
from containers.distributed.ranks import of_all_ranks
from containers.packing.logps import add_logps, causal_of, completion_packs
from tests.unit.containers.algorithms.offline_cases import examples, gradient_of, policy_of

if __name__ == "__main__":
    rank, ranks, rendezvous, start, output, loss_name = sys.argv[1:]
    if int(ranks) > 1:
        # accelerate demands an address, and then takes the group that is there.
        own_environment = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank, "MASTER_ADDR": "127.0.0.1"}
        os.environ.update(own_environment)
        meeting = f"file://{rendezvous}"
        distributed.init_process_group("gloo", init_method=meeting, rank=int(rank), world_size=int(ranks))
    accelerator = Accelerator(cpu=True)
    model: Any = policy_of(Path(start))
    add_logps(causal_of(model), temperature=1.0)
    cut = partial(completion_packs, max_tokens=60, num_together=2)
    parts = PREFERENCE_LOSSES[loss_name].model_copy(update={"sft_weight": 0.5})
    own = examples(2, number=7)[int(rank) :: int(ranks)]
    own = with_reference(own, computed_reference(model, own, cut=cut, dtype=torch.float32))
    step = OfflineStep(accelerator=accelerator, objective=Preference(parts), cut=cut)
    loss, figures = step.update(accelerator.prepare(model), own)
    loss = sum(of_all_ranks(float(loss))) / int(ranks)
    num_packs = of_all_ranks(len(step._packs(own)[0]))
    if rank == "0":
        torch.save({"gradient": gradient_of(model), "loss": loss, "figures": figures, "packs": num_packs}, output)
    if int(ranks) > 1:
        distributed.barrier()
        os._exit(0)  # gloo may abort a process that ends while its threads run
