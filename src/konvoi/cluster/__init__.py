"""Several machines over plain ssh: who they are, whether all is well with them, and a training on all of them."""
