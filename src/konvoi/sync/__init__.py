"""Ways to keep the workers' models equal, one file each, and the team that they work in.

A module declares `Config` (the recipe's [sync] table) and `Sync(config, team, timeline)`:

    probe(one_pass, num_passes, shapes)
                                  before all: a step takes so many passes forward and back, and one may be tried
    chosen, message               what it does (a Config), and what to tell the user of that before the first step
    use(optimizer)                before wrap(): what each worker steps with
    rate_factor(step)             by how much longer this step must be than the schedule says
    momentum_span(step)           over how many times as many steps as usual Muon's momentum looks back
    wrap(model)                   what the loop calls instead of the model
    settle(one_pass)              before the first step, also of a resumed run; one_pass() goes forward and back for
                                  nothing, always over the same micro-batch
    micro_step(model, is_last)    around forward and backward of one micro-batch; until the last one's end nothing may
                                  change what after_step() saw, of which somebody may still take a copy
    num_averaged                  how many workers' gradients are averaged (the loss is multiplied by it)
    after_step(model, step)       after the optimiser
    settings_of(step)             a Config, of this way or another, by which the step that has just ended was exchanged:
                                  its traffic() says what that sent
    agreement_lag                 how many steps later the workers must know of each other how a step went; 0: at once
    replicas_differ, may_differ   whether the workers' weights part between two exchanges, or ever may
    heard(step, losses)           every worker's loss of a step; returns what to tell the user, or nothing
    finish(step)                  after the last step of a run: what one worker alone learnt becomes everybody's;
                                  returns whether that changed the weights, which happens once
    shared()                      around an evaluation or a save: the model holds what all have in common
    state(), load_state(state)    what a checkpoint must hold: small things, equal on all workers
    tensors(), load_tensors(t)    the same for tensors; loading comes before wrap()
    own_tensors(), load_own(t)    tensors of this worker alone; without them (other workers than before) it goes on well
    rewound()                     a checkpoint was loaded in the midst of a run, after wrap()
    close()                       the run is over
    timeline                      told of every exchange, so that waiting and moving can be told apart

and a function traffic(config, shapes): what it sends and when (_traffic.py). `_base.py` does nothing in all of these.
"""

from konvoi.sync._team import Team
from konvoi.sync._traffic import HiddenShape, Shapes, Traffic, num_hidden, num_values

__all__ = ["HiddenShape", "Shapes", "Team", "Traffic", "num_hidden", "num_values"]
