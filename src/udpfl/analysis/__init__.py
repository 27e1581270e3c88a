"""What a training is like, after the fact: curves between models, convergence, errors of noise.

Nothing is imported here: the errors need numpy only, the curves need torch.
"""
