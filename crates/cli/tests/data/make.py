"""Writes tiny.pt: a PyTorch checkpoint of the tests' small network, float16, saved from a DataParallel wrapper.

All tensors are views of one storage of noise, so that the file stays small. Needs PyTorch, NumPy and SciPy.
"""

import math
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[4] / "weights/demo/training"))
import gct  # noqa: E402

config = gct.Config(embed_dim=64, num_heads=1, depth=4, vit_depth=2, vit_heads=1, pos_grid=5, taps=[0, 1, 2, 3],
                    camera_depth=1, camera_heads=1, dpt_features=16, dpt_hidden=8, dpt_channels=[16, 16, 16, 16])
shapes = gct.shapes(config)
torch.manual_seed(0)
noise = (torch.randn(max(math.prod(shape) for shape in shapes.values())) / 8).half()
torch.save({f"module.{name}": noise[:math.prod(shape)].view(shape) for name, shape in shapes.items()}, "tiny.pt")
