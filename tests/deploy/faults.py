"""What may go wrong between a server and a site, one way each.

A fault takes the question and gives the reply that the server sees. `Call.answer` asks the site, so
whatever a fault does after that, the site has been charged.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from udpfl.algorithms import ClientMessage
from udpfl.deploy.transport import NoReply, Reply

LONG = 20_000_000
"""Bytes of a message that is far too long."""


def lost(call):
    """The question does not arrive."""
    raise NoReply("lost on the way")


def died(call):
    """The site answers, and its node dies before the answer is sent."""
    call.answer()
    raise NoReply("the node died (code 5)")


def silent(call):
    """Nothing ever comes back."""
    call.wait(10**6)


def late(call):
    """The answer comes after the round is over."""
    reply = call.answer()
    call.wait(10**6)
    return reply


def _changed(change):
    def fault(call):
        reply = call.answer()
        message = ClientMessage.from_bytes(reply.body)
        return Reply(reply.about, change(message).to_bytes())

    return fault


def _with(change):
    def changed(message):
        tensors = {**message.tensors, "update": change(message.tensors["update"])}
        return replace(message, tensors=tensors)

    return _changed(changed)


def garbage(call):
    """Bytes that mean nothing."""
    return Reply(call.answer().about, b"\xde\xad\xbe\xef" * 100)


def nonsense(call):
    """A table that is not an answer."""
    call.answer()
    return Reply({"hello": ["world"]}, b"")


def empty(call):
    """An answer without a message."""
    return Reply(call.answer().about, b"")


def long(call):
    """Far more bytes than a message has."""
    return Reply(call.answer().about, bytes(LONG))


def another_site(call):
    """The answer of somebody else."""
    reply = call.answer()
    return Reply({**reply.about, "site": "client-9"}, reply.body)


def _stating(**said):
    def fault(call):
        reply = call.answer()
        about = {**reply.about, "privacy": {**reply.about["privacy"], **said}}
        return Reply(about, reply.body)

    return fault


BAD = {
    "nan": _with(lambda own: own * torch.nan),
    "infinite": _with(lambda own: own + torch.inf),
    "huge": _with(lambda own: own + 3e38),
    "wrong shape": _with(lambda own: own[:-1]),
    "too large": _with(lambda own: own.repeat(50)),
    "double": _with(lambda own: own.double()),
    "another round": _changed(lambda own: replace(own, round=own.round + 1)),
    "another client": _changed(lambda own: replace(own, client="client-9")),
    "another size": _changed(lambda own: replace(own, metadata={"declared_size": 10**9})),
    "no size": _changed(lambda own: replace(own, metadata={})),
    "no update": _changed(lambda own: replace(own, tensors={"other": torch.ones(3)})),
    "garbage": garbage,
    "nonsense": nonsense,
    "empty": empty,
    "long": long,
    "another site": another_site,
    "lists for remarks": _stating(notes=[["a remark"]]),
    "tables for assumptions": _stating(assumptions=[{"assumes": "that"}]),
    "no accountant": _stating(accountant=None),
    "no number": _stating(epsilon=10**400),
}
"""Replies that are left out of the round."""
GONE = {"lost": lost, "died": died, "silent": silent, "late": late}
"""Ways not to answer."""
