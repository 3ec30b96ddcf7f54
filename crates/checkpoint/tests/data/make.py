"""Writes the PyTorch files of this folder. Needs PyTorch; any version from 1.6 on will do."""

import argparse
import collections

import torch

numbers = torch.arange(24, dtype=torch.float32) / 8 - 1  # exact in every number type
weights = collections.OrderedDict()
weights["aggregator.plain"] = numbers.reshape(2, 3, 4).clone()
weights["aggregator.transposed"] = numbers.reshape(4, 6).t()
weights["aggregator.part"] = numbers[5:17].reshape(3, 4)  # shares the storage of the one before, from an offset
weights["aggregator.columns"] = numbers.reshape(4, 6)[:, 1:4]
weights["aggregator.single"] = numbers[7]
weights["aggregator.parameter"] = torch.nn.Parameter(numbers[:3].clone())
weights["aggregator.half"] = numbers.half()
weights["aggregator.bfloat16"] = numbers.bfloat16()
weights["aggregator.steps"] = torch.tensor([7])
weights._metadata = {"": {"version": 1}}  # as state_dict() does

torch.save(weights, "bare.pt")
torch.save(weights, "protocol4.pt", pickle_protocol=4)
torch.save({"module." + name: tensor for name, tensor in weights.items()}, "data-parallel.pt")
settings = argparse.Namespace(rate=1e-4, sizes=[1, 2], name="run")
for key in ("model", "state_dict", "model_state_dict"):
    torch.save({"epoch": 3, "args": settings, "optimizer": {"state": {0: numbers}}, key: weights}, f"{key}.pt")
torch.save(weights, "legacy.pt", _use_new_zipfile_serialization=False)


class Harmful:
    def __reduce__(self):
        import os
        return os.system, ("touch HARM",)


torch.save({"model": weights, "extra": Harmful()}, "harmful.pt")
