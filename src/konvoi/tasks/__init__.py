"""What is trained. A task module declares the types of its tables and a Task:

Config, Data, Batching, Evaluate    the recipe's [task], [data], [batching], [evaluate]
prepare(recipe, report)             makes the data ready, once, before any worker starts
Task(recipe, device)                opened on every rank:
    build_model()                   -> nn.Module
    num_per_epoch                   micro-batches in an epoch
    num_targets(position)           what the loss of a micro-batch is divided by, without loading it
    micro_batch(position)           -> a batch with num_targets, num_sources, num_padded
    loss_sums(model, batch)         -> objective to minimise, plain loss to report; sums over the batch
    evaluate(model, team)           -> scores, the same on every rank
"""
