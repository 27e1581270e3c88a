"""The folder of a run: what is in it, who writes it, and where its ledger is.

`folder` is for whoever trains or goes on with a run; `files` reads a folder without torch.
"""
