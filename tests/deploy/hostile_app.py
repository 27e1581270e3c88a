"""A ServerApp that breaks the policy of every site, in as many ways as it can."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import numpy as np
from flwr.serverapp import ServerApp

from tests.site.hostile import WAYS, broken
from tests.site.samples import request
from udpfl.deploy._flower import FlowerTransport

REQUESTS = 20
BUDGETS = {"all of the budget at once", "larger budget", "less noise by a reference"}
"""Ways that break the usual policy of tests by its numbers, which these sites do not have."""
TRIED = [way for way in WAYS if way not in BUDGETS]
app = ServerApp()


@app.main()
def main(grid, context):
    """Ask every node for what it must refuse; write down what it said."""
    transport, rng = FlowerTransport(grid), np.random.default_rng(1)
    out = Path(str(context.run_config["out"]))
    nodes = []
    while len(nodes) < 3:
        nodes = transport.nodes()
    found: list[dict] = []

    def ask(node, own):
        for number, ways in own:
            sent = broken(request(run=f"hostile-{number}"), ways, np.random.default_rng(number))
            about = {"ask": "train", "address": sent.address()}
            reply = transport.ask(node, about, sent.body(), 120.0, threading.Event())
            said = {"refused": reply.about.get("refused"), "bytes": len(reply.body)}
            found.append({"ways": list(ways), **said})

    tried = [list(rng.choice(TRIED, rng.integers(1, 4), replace=False)) for _ in range(REQUESTS)]
    shares = [list(enumerate(tried))[place::3] for place in range(3)]
    threads = [
        threading.Thread(target=ask, args=(node.id, share))
        for node, share in zip(nodes, shares, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    out.write_text(json.dumps(found))
