"""Everything that an observer of a shuffled run is shown."""

from __future__ import annotations

import torch

from tests.small import PowerCut


class Seen:
    """Keeps everything an observer is shown; crashes when the model of a round is shown."""

    def __init__(self, crash_in=None):
        self.messages, self.models, self.rows, self.crash_in = [], {}, [], crash_in

    def on_message(self, message):
        self.messages.append(message)

    def on_model(self, round_, model):
        self.models[round_] = torch.cat([tensor.flatten() for tensor in model.values()])
        if round_ == self.crash_in:
            raise PowerCut

    def on_round(self, row):
        self.rows.append(row)
