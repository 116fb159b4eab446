"""What is trained. A task module declares the types of its tables and a Task:

Config, Data, Batching, Evaluate    the recipe's [task], [data], [batching], [evaluate]
prepare(recipe, report)             makes the data ready, once, before any worker starts
find(recipe)                        the same where it is ready already, else None
carry(prepared, run)                puts into the run directory what the trained model needs besides its weights
check_same(prepared, run)           raises where a run that goes on would meet other data
open_model(recipe, run)             -> nn.Module, from the run directory alone
num_outputs(recipe, prepared)       pieces or classes: what the model's size depends on besides its table
work(recipe, prepared)              {"flops_per_...": operations of forward and backward}
Task(recipe, device, team)          opened on every rank:
    build_model()                   -> nn.Module
    num_per_epoch                   micro-batches in an epoch
    num_targets(position)           what the loss of a micro-batch is divided by, without loading it
    micro_batch(position)           -> a batch with num_targets, num_sources, num_padded
    amounts(...)                    what a step worked on, for its event: counts and ..._per_second
    loss_sums(model, batch)         -> objective to minimise, plain loss to report; sums over the batch
    evaluate(model, team)           -> scores, the same on every rank
"""
