"""Membership inference: was this record in the training data? One file for each attack."""
