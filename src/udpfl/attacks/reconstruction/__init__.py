"""Reconstruction: what did the records look like? One file for each attack."""

from udpfl.attacks.reconstruction.metrics import mae, mse, pair, psnr, ssim

__all__ = ["mae", "mse", "pair", "psnr", "ssim"]
