"""As ddp, with gradients in bfloat16 on the wire: half the bytes, a rounding of two digits, and no limits to mind.

The sums are rounded too, one after another around the ring. torch's own hook refuses to run without NCCL; gloo adds up
bfloat16 all the same (torch 2.13). On GPUs NCCL does, which was not tried so far.
"""

from __future__ import annotations

from typing import Literal

import torch

from konvoi.sync import Shapes, Traffic, ddp, fp16


class Config(ddp.Config):
    """The recipe's [sync] table."""

    name: Literal["bf16"] = "bf16"  # type: ignore[assignment]


class Sync(fp16.Sync):
    config: Config  # type: ignore[assignment]
    dtype = torch.bfloat16
    # It reaches as far as fp32.
    scale = 1.0


def traffic(config: Config, shapes: Shapes) -> Traffic:
    """As ddp's, in two bytes each."""
    return ddp.traffic(config, shapes, bytes_per_value=2)
