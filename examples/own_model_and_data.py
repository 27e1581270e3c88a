"""Your own network on your own arrays, privately: `python examples/own_model_and_data.py`."""

import numpy as np
from torch import nn

import udpfl

rng = np.random.default_rng(0)
labels = rng.integers(2, size=3000)
inputs = rng.normal(size=(3000, 10)) + 0.5 * labels[:, None]

result = udpfl.run(
    {"data": {"clients": 5}},
    model=nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 2)),
    data=(inputs, labels),  # or a list with one such pair per client
    privacy={"epsilon": 2.0, "delta": 1e-5},
    training={"rounds": 10, "sampling_rate": 0.1},
)
print(f"accuracy {result.accuracy:.3f}, every client: {result.privacy}")
print(f"weights {list(result.model.state_dict())}, run folder {result.folder}")
