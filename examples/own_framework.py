"""Sites that enforce their own budgets, in a plain Python loop.

A gate takes a request and gives back a charged message or a refusal. Whatever carries the two (a
queue, a web service, another framework) is around it, as this loop is. `SiteRequest.body`,
`SiteRequest.address` and `Gate.handle` are the same as bytes and plain data.
"""

from dataclasses import replace

from udpfl.algorithms import ClientMessage
from udpfl.config import load
from udpfl.federation import Server, Setup
from udpfl.site import Gate, Policy, SiteRequest, settings_to_propose

SITES, ROUNDS = 3, 5


def policy(number: int) -> Policy:
    """What a site allows: five releases with noise for ε = 8, and only this model and method."""
    return Policy.of(
        {
            "name": f"clinic-{number}",
            "state": f"clinic-{number}",
            "data": {"name": "mnist5k", "part": number, "parts": SITES, "declared_size": 1333},
            "budget": {"epsilon": 8.0, "delta": 1e-5},
            "releases": {"in_all": ROUNDS, "sampling_rate": 0.5},
            "server": {"models": [{"name": "cnn-small"}], "methods": ["fedavg"]},
        }
    )


gates = [Gate(policy(number)) for number in range(SITES)]
config = load({"data": {"clients": SITES}, "training": {"rounds": ROUNDS}})
setup = Setup.of(config)
server, settings = Server(setup.algorithm, setup.start), settings_to_propose(config)
for round_ in range(1, ROUNDS + 1):
    sent = server.request(round_).tensors
    asked = SiteRequest("first", settings, round_, sent, learning_rate=2.0, cohort=SITES)
    answers = [gate.answer(replace(asked, client=n)) for n, gate in enumerate(gates)]
    messages = [ClientMessage.from_bytes(own.message) for own in answers if own.message]
    server.receive(round_, messages)
    print(f"round {round_}: accuracy {setup.evaluate(server.model).accuracy:.3f}")

for own in answers:
    print(f"{own.site}: {own.privacy}")
print(f"one run more: {gates[0].answer(replace(asked, run='second')).refused}")
