"""A federation without a network: gates in this process, and faults on the way to them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from tests.site.samples import policy, settings
from udpfl import Ledger
from udpfl.deploy.settings import Federation
from udpfl.deploy.transport import Node, NoReply, Reply
from udpfl.site import Gate, Policy

QUICK = {
    "round_timeout": 60.0,
    "start_timeout": 2.0,
    "retry_after": 0.01,
    "poll_every": 0.01,
    "evaluate": "none",
}
_OWN = threading.local()
Fault = Callable[["Call"], Reply]
"""What becomes of a question: `Call.answer` asks the gate."""


@dataclass
class Call:
    """A question on its way."""

    policy: Policy
    about: Mapping
    body: bytes
    stop: threading.Event
    timeout: float
    site: ThreadPoolExecutor

    def answer(self) -> Reply:
        """What the gate says; a thread of its own answers for each site, as a service would."""
        return self.site.submit(self._handled).result()

    def _handled(self) -> Reply:
        if not hasattr(_OWN, "gate"):
            _OWN.gate = Gate(self.policy)
        return Reply(*_OWN.gate.handle(self.about, self.body))

    def wait(self, seconds):
        if self.stop.wait(min(seconds, self.timeout)) or seconds >= self.timeout:
            raise NoReply("no answer in time")


@dataclass
class Memory:
    """Sites that are asked directly, one after the other, whatever thread asks."""

    sites: dict[int, Policy]
    faults: list[Fault] = field(default_factory=list)
    """Each of the next questions to train meets one of them, in this order."""
    seen: list[tuple[str, Reply]] = field(default_factory=list)
    """All replies to train that the server got."""
    names: dict[int, str] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    _threads: dict[int, ThreadPoolExecutor] = field(default_factory=dict)

    def restart(self, node):
        """The service of a site dies, and the next question finds a new one."""
        self._threads.pop(node).shutdown()

    def nodes(self):
        return [Node(number, self.names.get(number, "")) for number in self.sites]

    def ask(self, node, about, body, timeout, stop):
        if node not in self.sites:
            time.sleep(0.01)
            raise NoReply("gone")
        if node not in self._threads:
            self._threads[node] = ThreadPoolExecutor(1)
        call = Call(self.sites[node], about, body, stop, timeout, self._threads[node])
        with self.lock:
            fault = self.faults.pop(0) if self.faults and about["ask"] == "train" else None
        if fault is not None:
            reply = fault(call)
        else:
            with self.lock:  # torch is told how many threads to use
                reply = call.answer()
        if about["ask"] == "train":
            self.seen.append((self.sites[node].name, reply))
        return reply


def memory(folder, sites=3, **changes):
    """So many small sites."""
    return Memory({number + 10: policy(folder, number, **changes) for number in range(sites)})


@contextmanager
def ledgers(sites):
    """The ledgers of all sites, to look at."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(Ledger(own.ledger, read_only=True)) for own in sites.sites.values()
        ]


def federation(deploy=None, **changes):
    """The file of a federation of small sites."""
    return Federation.of({**settings(**changes), "deploy": {**QUICK, **(deploy or {})}})
