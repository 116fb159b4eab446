"""Writes an image classifier as an ONNX graph, in float32 and in 8 bits."""

from __future__ import annotations

import contextlib
import logging
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

import onnx
import torch
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process
from torch import Tensor, nn

from konvoi.bundle.classifier import INPUT, OUTPUT
from konvoi.image_input.augment import Pixels
from konvoi.tasks.classification import Normalise

# Not the linear layer, nor the first convolution: a small part of the work, and with them exact int8 decides otherwise
# less often (of 2,000 demo-images, ResNet-18: 0.75 % instead of 1.35 % after 80 steps, 3.95 % instead of 4.55 % after
# 12; 2026-11-16).
QUANTISED = ["Conv", "Add", "Relu", "MaxPool", "AveragePool"]


class FromBytes(nn.Module):
    """uint8 [N,H,W,RGB] -> logits [N,C]: normalising is part of the graph, where nobody can forget it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.normalise = model, Normalise(torch.device("cpu"))

    def forward(self, pixels: Tensor) -> Tensor:
        logits: Tensor = self.model(self.normalise(pixels.permute(0, 3, 1, 2)))
        return logits


def write_onnx(model: nn.Module, size: int, file: Path) -> None:
    """Of a model on the CPU, in evaluation mode; takes any number of pictures at a time."""
    # Two pictures: with one, the exporter would take the one for a constant.
    pixels = torch.zeros(2, size, size, 3, dtype=torch.uint8)
    with _quietly():
        program = torch.onnx.export(
            FromBytes(model).eval(),
            (pixels,),
            input_names=[INPUT],
            output_names=[OUTPUT],
            dynamic_shapes={INPUT: {0: torch.export.Dim("pictures")}},
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    graph = program.model_proto
    _forget_origins(graph)
    onnx.save_model(graph, file)


def _forget_origins(model: onnx.ModelProto) -> None:
    """The exporter notes the line of source behind every node, with the paths of this machine."""
    graph = model.graph
    for part in (model, graph, *graph.node, *graph.value_info, *graph.initializer, *graph.input, *graph.output):
        del part.metadata_props[:]


def quantise(float32: Path, int8: Path, batches: Iterable[Pixels]) -> None:
    """Static: the range of every activation is what these real pictures [N,H,W,RGB] make of it."""
    with tempfile.TemporaryDirectory() as folder, _quietly():
        ready = Path(folder) / "ready.onnx"
        quant_pre_process(float32, ready, skip_symbolic_shape=True)
        quantize_static(
            ready,
            int8,
            _Calibration(batches),
            op_types_to_quantize=QUANTISED,
            nodes_to_exclude=[_first_convolution(ready)],
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            # 7 bits: without VNNI, x86 adds two products of 8 bits in 16, which overflow without a word. On AVX2 the
            # logits of a ResNet-18 were then off by 0.6 of 1.7; with 7 bits by 0.1 (2026-11-16).
            reduce_range=True,
        )


def _first_convolution(file: Path) -> str:
    name: str = next(node.name for node in onnx.load(file).graph.node if node.op_type == "Conv")
    return name


class _Calibration(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, batches: Iterable[Pixels]) -> None:
        self._batches = iter(batches)

    def get_next(self) -> dict[str, Pixels] | None:
        pixels_NHWC = next(self._batches, None)
        return None if pixels_NHWC is None else {INPUT: pixels_NHWC}


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Both tools talk of what they lack and of their own past; nothing of it is for the user."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.disable(before)
