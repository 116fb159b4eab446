"""Ways to keep the workers' models equal, one file each, and the team that they work in.

A module declares `Config` (the recipe's [sync] table) and `Sync(config, team)`:

    wrap(model)                   what the loop calls instead of the model
    micro_step(model, is_last)    around forward and backward of one micro-batch
    num_averaged                  how many workers' gradients are averaged (the loss is multiplied by it)
    after_step(model, step)       after the optimiser
    state(), load_state(state)    what a checkpoint must hold
    bytes_per_step(num_parameters, num_workers)
"""

from konvoi.sync._team import Team

__all__ = ["Team"]
