"""The names of the files in a run folder, in one place."""

IDENTITY = "run.json"
CONFIG = "config.toml"
CLIENTS = "participants.json"
RECORDS = "records.npz"
PREPROCESSING = "preprocessing.json"
PROPOSAL = "proposal.json"
METRICS = "metrics.jsonl"
EVALUATION = "evaluation.json"
SUMMARY = "summary.json"
MODEL = "model.safetensors"
LEDGER = "ledger.sqlite"
CHARGED = "charged.log"
CHECKPOINTS = "checkpoints"
AGGREGATES = "aggregates"
UPDATES = "updates"
AUDITS = "audits"
LOCK = ".lock"

BEGUN_WITH = (IDENTITY, CONFIG, CLIENTS, RECORDS, PREPROCESSING)
"""Files that are never written again once a run has begun."""
ENDED_WITH = (MODEL, METRICS, EVALUATION)
"""Files that are final when a run ends."""
