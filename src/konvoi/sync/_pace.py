"""How often diloco exchanges, once replicas that part have made it come more often than it began."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from konvoi.sync.diloco import Config


def tightened(local_steps: int) -> int:
    return max(1, local_steps // 2)


def at_pace(config: Config, local_steps: int, overlap_steps: int) -> Config:
    """The same fragments and momenta as before travel, but so often.

    Not checked anew: there may be more fragments than local steps now, and several of them leave after a step.
    """
    if local_steps == config.local_steps:
        return config
    kept = {"fragments": config.num_fragments, "share_momentum": config.shares_momentum}
    return config.model_copy(update={**kept, "local_steps": local_steps, "overlap_steps": overlap_steps})
