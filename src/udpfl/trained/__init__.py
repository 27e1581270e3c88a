"""Use a trained model: load it from its run folder, predict, evaluate, export."""

from udpfl.trained.exporting import FORMATS, export
from udpfl.trained.model import TrainedModel, load
from udpfl.trained.predictions import Predictions

__all__ = ["FORMATS", "Predictions", "TrainedModel", "export", "load"]
