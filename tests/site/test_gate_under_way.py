"""What a policy that changed, or that a run does not fit, means for runs."""

from __future__ import annotations

import stat
import subprocess
import sys
from dataclasses import replace

import pytest

from tests.repository import ROOT
from tests.site.samples import (
    everything_in,
    gate,
    message_of,
    request,
    with_privacy,
)
from udpfl.errors import InvalidInput, Refused
from udpfl.site.sealing import new_key, opening_public, signing_public, unseal

pytestmark = pytest.mark.usefixtures("one_thread")


def mixed(round_=1, client=0):
    """A request of a run that has a shuffler."""
    return request(round_, client, training={"shuffle": True})


def test_a_sealed_message_says_which_request_it_answers(tmp_path):
    """Also when the same round is asked for again, with something else."""
    signing, opening = new_key(), new_key()
    (tmp_path / "signing.key").write_text(signing)
    keys = {"public_key": opening_public(opening), "signing_key": str(tmp_path / "signing.key")}
    own = gate(tmp_path, shuffler=keys)
    other = replace(mixed(), learning_rate=1e6)
    answers = [own.answer(sent) for sent in (mixed(), other, mixed(2))]
    known = {"client-0": signing_public(signing)}
    first, again, second = (unseal(each.message, opening, known) for each in answers)
    assert first == again
    assert len({first.work, second.work}) == 2
    # Another site says the same of the same request, and something else of another one.
    more = dict(keys, signing_key=str(tmp_path / "signing.key"))
    works = {}
    for name, sent in {"same": mixed(client=1), "rate": other}.items():
        beside = gate(tmp_path / name, 1, shuffler=more)
        message = beside.answer(replace(sent, client=1, cohort=3)).message
        works[name] = unseal(message, opening, {"client-1": signing_public(signing)}).work
    assert works["same"] == first.work
    assert works["rate"] != first.work
    marked = with_privacy(mixed(client=1), clip=[1.0, 0.5, 0.25])
    beside = gate(tmp_path / "clip", 1, shuffler=more)
    message = beside.answer(marked).message
    first_of_it = gate(tmp_path / "clips", shuffler=more).answer(replace(marked, client=0)).message
    assert (
        unseal(message, opening, {"client-1": signing_public(signing)}).work
        != unseal(first_of_it, opening, known).work
    )


def test_a_shuffler_is_not_for_methods_that_keep_something(tmp_path):
    signing = new_key()
    (tmp_path / "signing.key").write_text(signing)
    keys = {"public_key": opening_public(new_key()), "signing_key": str(tmp_path / "signing.key")}
    own = gate(tmp_path, shuffler=keys)
    sent = request(training={"algorithm": "scaffold", "shuffle": True})
    assert "could mark a site" in own.answer(sent).refused
    assert list(own.ledger.history()) == []


def test_noise_that_follows_results_does_not_mark_a_site(tmp_path):
    key = tmp_path / "client-0.seal"
    key.write_text(new_key())
    own = {"public_key": opening_public(new_key()), "signing_key": str(key)}
    sealing = gate(tmp_path, releases={"paces": True, "per_round": 1}, shuffler=own)
    pace = {"pace": "plateau", "pace_follows": "update", "ledger": "anybody's"}
    training = {"shuffle": True, "rounds": 20}
    assert "mark a site" in sealing.answer(request(privacy=pace, training=training)).refused


def test_a_run_without_a_shuffler_is_refused_where_messages_are_sealed(tmp_path):
    """Nobody could open them: the site would be charged for nothing."""
    (tmp_path / "signing.key").write_text(new_key())
    keys = {"public_key": opening_public(new_key()), "signing_key": str(tmp_path / "signing.key")}
    own = gate(tmp_path, shuffler=keys)
    answer = own.answer(request())
    assert "training.shuffle: the policy seals every message" in answer.refused
    assert answer.is_final
    assert list(own.ledger.history()) == []
    assert own.answer(mixed()).is_sealed


@pytest.mark.parametrize(("before", "after"), [("one", "many"), ("many", "one")])
def test_a_ledger_of_another_kind_than_the_policy_is_said_by_the_keys_of_the_policy(
    tmp_path, before, after
):
    own = gate(tmp_path, budget={"runs": before})
    own.require_account()
    message_of(own.answer(request()))
    own.close()
    own = gate(tmp_path, budget={"runs": after})
    for sent in (request(2), request(run="two")):
        answer = own.answer(sent)
        assert f'budget.runs is "{after}" in the policy' in answer.refused
        assert answer.is_final
    with pytest.raises(Refused, match=r"budget\.runs"):
        own.require_account()
    assert own.ledger.head()[0] == 1


def test_a_refusal_is_logged_where_whoever_starts_the_service_sees_it(tmp_path, caplog):
    caplog.set_level("INFO")
    gate(tmp_path).answer(replace(request(), cohort=1))
    assert "refused round 1 of run run-1: the round asks 1 sites" in caplog.text


def test_a_state_folder_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match="a folder that this user can write to"):
        gate(tmp_path, state=str(tmp_path / "file" / "state"))


def test_a_stricter_policy_counts_for_a_run_under_way(tmp_path):
    own = gate(tmp_path)
    message_of(own.answer(request()))
    own.close()
    stricter = {
        "not of the policy": {"releases": {"mechanisms": ["laplace"]}},
        "δ = 1e-07": {"budget": {"epsilon": 1.2, "delta": 1e-7}},
    }
    for why, changes in stricter.items():
        own = gate(tmp_path, **changes)
        assert why in own.answer(request(2)).refused
        assert own.ledger.head()[0] == 1
        own.close()


@pytest.mark.parametrize(("in_all", "left"), [(5, "0 of 5"), (19, "14 of 19"), (20, "")])
def test_fewer_releases_in_the_policy_count_for_a_run_under_way(tmp_path, in_all, left):
    """Also where the run has reserved them."""
    limits = {"in_all": 20, "per_round": 5}
    own, sent = gate(tmp_path, releases=limits), request(training={"local_steps": 5})
    message_of(own.answer(sent))
    own.close()
    own = gate(tmp_path, releases={**limits, "in_all": in_all})
    for round_ in (2, 3, 4):
        answer = own.answer(replace(sent, round=round_))
        if left:
            assert (
                answer.refused
                == f"the rest of the run has 15 releases, and the policy leaves {left}"
            )
        else:
            message_of(answer)
    assert own.ledger.head()[0] == (1 if left else 4)
    own.close()
    if not left:  # there is nothing left to release: what is stored is sent again
        own = gate(tmp_path, releases={**limits, "in_all": 5})
        assert own.answer(replace(sent, round=4)).message == answer.message


def test_reservations_of_others_count_for_a_run_under_way(tmp_path):
    own = gate(tmp_path, releases={"in_all": 8})
    for run in ("one", "two"):
        message_of(own.answer(request(run=run)))
    own.close()
    own = gate(tmp_path, releases={"in_all": 7})
    assert (
        "has 3 releases, and the policy leaves 2 of 7" in own.answer(request(2, run="one")).refused
    )
    own.finish("two")
    message_of(own.answer(request(2, run="one")))


def test_a_run_that_has_taken_all_its_steps_goes_on_with_what_is_stored(tmp_path):
    """Where steps are shared out, a run may have none left before its last round."""
    changes = {"releases": {"in_all": 20, "per_round": 4}, "server": {"methods": ["als-dpfl"]}}
    own = gate(tmp_path, **changes)
    sent = request(training={"algorithm": "als-dpfl", "rounds": 3, "local_steps": 2})
    first, second = (own.answer(replace(sent, round=n, steps=3)) for n in (1, 2))
    own.close()
    own = gate(tmp_path, **changes)
    before = everything_in(own.ledger)
    assert own.answer(replace(sent, round=2, steps=3)).message == message_of(second).to_bytes()
    assert own.answer(replace(sent, round=1, steps=3)).message == first.message
    refused = own.answer(replace(sent, round=3, steps=1))
    assert "has not reserved this release" in refused.refused
    assert everything_in(own.ledger) == before


OWN_NOISE = """
from dataclasses import dataclass

import numpy as np

from udpfl import Gaussian, Tabulated


@dataclass(frozen=True)
class Mine(Gaussian):
    name = "mine"


@dataclass(frozen=True)
class Logistic(Tabulated):
    name = "logistic"

    def shape(self, x):
        return -x - 2 * np.log1p(np.exp(-x))


shaped = Logistic(3.0)
"""
ASKING = """
import sys
from pathlib import Path
from tests.site.samples import gate, message_of, request
folder, noise, run = sys.argv[1:]
limits = {"mechanisms": [noise], "in_all": 8}
own = gate(Path(folder), releases=limits, code=folder)
message_of(own.answer(request(run=run, training={"rounds": 2})))
assert len(list(own.ledger.history())) == int(run[-1]), "each run is charged once"
"""


@pytest.mark.parametrize("noise", ["noise_of_a_site:Mine", "noise_of_a_site:shaped"])
def test_noise_of_a_sites_own_is_for_every_run(tmp_path, noise):
    """Also in a process that has not seen it yet, when the ledger is read."""
    (tmp_path / "noise_of_a_site.py").write_text(OWN_NOISE)
    for run in ("run-1", "run-2"):
        command = [sys.executable, "-c", ASKING, str(tmp_path), noise, run]
        subprocess.run(command, check=True, cwd=ROOT)


def test_noise_that_cannot_be_imported_is_said_at_once(tmp_path):
    with pytest.raises(InvalidInput, match="cannot import"):
        gate(tmp_path, releases={"mechanisms": ["gaussian", "nowhere_to_be_found:Noise"]})


def test_only_the_site_can_read_its_folder(tmp_path):
    gate(tmp_path)
    assert stat.S_IMODE((tmp_path / "state-0").stat().st_mode) == 0o700


def test_a_disk_that_is_full_in_mid_note_costs_nothing(tmp_path, monkeypatch):
    signing = new_key()
    (tmp_path / "signing.key").write_text(signing)
    keys = {"public_key": opening_public(new_key()), "signing_key": str(tmp_path / "signing.key")}
    own = gate(tmp_path, shuffler=keys)

    def full(path, data):
        raise OSError("no space left on device")

    monkeypatch.setattr("udpfl.site._admission.write_whole", full)
    assert own.answer(mixed()).message == b""
    assert list(own.ledger.history()) == []
    monkeypatch.undo()
    assert own.answer(mixed()).message
