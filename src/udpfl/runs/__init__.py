"""The folder of a run: what is in it, who reads and writes it, and where its ledger is.

`schema` has the types of its files, `files` is the one reader and `folder` the one writer, which
also has the tensors of checkpoints. All but `folder` work without torch.
"""
