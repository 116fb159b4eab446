"""Ways to keep the workers' models equal, one file each, and the team that they work in.

A module declares `Config` (the recipe's [sync] table) and `Sync(config, team, timeline)`:

    wrap(model)                   what the loop calls instead of the model
    settle(one_pass)              before the first step, also of a resumed run; one_pass() goes forward and back for
                                  nothing, always over the same micro-batch
    micro_step(model, is_last)    around forward and backward of one micro-batch
    num_averaged                  how many workers' gradients are averaged (the loss is multiplied by it)
    after_step(model, step)       after the optimiser
    state(), load_state(state)    what a checkpoint must hold
    timeline                      told of every exchange, so that waiting and moving can be told apart

and a function bytes_per_step(config, num_parameters, num_workers): what each worker sends.
"""

from konvoi.sync._team import Team

__all__ = ["Team"]
