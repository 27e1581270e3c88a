"""The one sentence at the end of an audit, what is kept of it, and how far it has got."""

from __future__ import annotations

import json
import math
import shutil

import numpy as np
import pytest

import udpfl
from tests.commands import command
from tests.small import blobs
from udpfl import Gaussian
from udpfl.audit import AuditResult, Releases, audit_run
from udpfl.audit.ledger import AccountAudit
from udpfl.audit.mechanism import audit_releases
from udpfl.audit.power import LessNoise
from udpfl.audit.verdict import POWER, Verdict
from udpfl.audit.verdict import Test as Counted
from udpfl.errors import InvalidInput
from udpfl.runs.audits import read_audits, write_audit

QUIET = Counted("score > 3", 10, 1000, 10, 1000, delta=1e-5, error=0.05)
LOUD = Counted("score > 3", 990, 1000, 0, 1000, delta=1e-5, error=0.05)


class Known:
    """An alternative whose power is known beforehand."""

    def __init__(self, found: object) -> None:
        self.found = found

    def caught(self, epsilon: float, delta: float) -> object:
        return self.found


def verdict(epsilon: float, found: object = None, test: Counted = QUIET) -> Verdict:
    other = None if found is None else Known(found)
    return Verdict(f"claim at {epsilon:g}", epsilon, 1e-5, (test,), 0.05, alternative=other)


def said(*verdicts: Verdict) -> str:
    return str(AuditResult(verdicts, 8.0, 1e-5, "client-0"))


def test_the_power_is_that_of_the_verdict_that_catches_most():
    found = said(
        verdict(3.0, LessNoise(None, None, None)),
        verdict(1.3, LessNoise(0.51, 0.001, 8.9)),
        verdict(0.6, LessNoise(0.25, 0.001, 9.5)),
        verdict(8.0, "something else than noise"),
    )
    assert found == (
        "The claim ε ≤ 8 at δ = 1e-05 of client-0 was not refuted; an audit of this size would "
        "have caught noise below 0.51 of the claimed with 99 % probability."
    )


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (None, "how much too little noise an audit of this size would have caught is not known"),
        (LessNoise(None, None, None), "would have caught no fraction of the claimed noise"),
        (LessNoise(0.4, 0.1, 5.0), "would have caught noise between 0.1 and 0.4 of the claimed"),
        (LessNoise(1, 0.001, 5.0), "refutes even the claimed noise with 99 % probability"),
    ],
)
def test_what_is_not_known_of_the_power_is_said(found, words):
    assert words in said(verdict(8.0, found))
    assert "was not refuted" in said(verdict(8.0, found))


def test_a_refuted_claim_is_said_to_be_refuted_though_most_verdicts_are_not():
    result = AuditResult((verdict(8.0), verdict(1.0, test=LOUD), verdict(2.0)), 8.0, 0.0)
    assert result.refuted
    proved = f"{LOUD.proved:.3g}"
    assert str(result) == (
        f"The claim ε ≤ 8 was refuted: claim at 1, ε ≥ {proved} with 95 % confidence, where "
        "ε ≤ 1 follows from the claim."
    )
    assert (result.to_dict()["refuted"], len(result), result[1].epsilon) == (True, 3, 1.0)


def test_the_factor_of_the_sentence_is_calculated_and_holds():
    """Noise at the printed factor is refuted, in audits that are drawn and not calculated."""
    noise, trials = Gaussian(0.8), 1_000
    releases = Releases(noise, np.array([1.0]))
    epsilon = udpfl.account(
        udpfl.Release(noise, udpfl.Sensitivity(1.0, dimension=1)), 0.05
    ).epsilon  # fmt: skip
    result = AuditResult((audit_releases(releases, epsilon, 0.05, trials=trials),), epsilon, 0.05)
    assert result.power is not None
    scale = result.power.scale
    assert scale is not None
    assert 0 < scale < 1
    assert f"would have caught noise below {scale:g} of the claimed" in str(result)
    assert result.to_dict()["power"] == {"probability": POWER, **result.power.to_dict()}
    from udpfl.engine.noise import MechanismNoiser

    less = MechanismNoiser([noise.scaled(scale)])
    refuted = [
        audit_releases(releases, epsilon, 0.05, trials=trials, noiser=less).refuted
        for _ in range(60)
    ]
    assert sum(refuted) >= 57  # fewer with probability 0.3 % at the stated power


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("audited") / "run"
    settings = {"out": str(folder), "threads": 1, "data": {"clients": 2},
                "training": {"rounds": 2}, "model": {"name": "logistic"}}  # fmt: skip
    udpfl.run(settings)
    return folder


def test_an_audit_of_a_run_is_kept_beside_it_and_changes_nothing(capsys, trained, tmp_path):
    folder = shutil.copytree(trained, tmp_path / "run")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    options = ("--trials", 100, "--canaries", 0)
    code, out, err = command(capsys, "audit", "run", folder, *options, "--progress")
    assert code == 0
    assert "replaying record in a full batch" in err
    assert "calculating what would have been caught" in err
    (record,) = read_audits(folder)
    assert out.splitlines()[-1] == record.conclusion
    assert record.conclusion.startswith("The claim ε ≤ 8 at δ = 1e-05 of client-")
    assert (record.trials, record.canaries, record.refuted) == (100, 0, False)
    assert {path: path.read_bytes() for path in before} == before
    code, out, err = command(capsys, "audit", "run", folder, *options, "--json", "--no-save")
    assert err == ""  # silent where nobody looks
    assert json.loads(out)["conclusion"].startswith("The claim ε ≤ 8")
    assert len(read_audits(folder)) == 1
    write_audit(folder, record.run, record.result, 100, 0)
    assert len(read_audits(folder)) == 2  # a later audit replaces none


def test_a_broken_record_is_refused_by_its_name(trained, tmp_path):
    folder = shutil.copytree(trained, tmp_path / "run")
    path = write_audit(folder, "1", {"conclusion": "not refuted", "refuted": False}, 100, None)
    path.write_text(path.read_text().replace('"refuted": false', '"refuted": "no"'))
    with pytest.raises(InvalidInput, match=f"cannot read .*{path.name}.*whether the claim"):
        read_audits(folder)
    path.write_text("{}")
    with pytest.raises(InvalidInput, match="must have the fields"):
        read_audits(folder)


def test_progress_counts_up_to_the_end():
    steps: list[tuple[str, int, int]] = []
    settings = {"data": {"clients": 2}, "training": {"rounds": 3}, "model": {"name": "logistic"},
                "threads": 1}  # fmt: skip
    audit_run(udpfl.config.load(settings), data=blobs(80), trials=100, canaries=10,
              progress=lambda *step: steps.append(step))  # fmt: skip
    ends: dict[str, tuple[int, int]] = {}
    for stage, done, total in steps:
        assert done >= ends.get(stage, (0, total))[0]
        ends[stage] = (done, total)
    assert ends["training once with canaries"] == (3, 3)
    assert ends["replaying record in a full batch"] == (200, 200)


@pytest.mark.parametrize(
    ("stated", "least", "most", "words"),
    [
        (7.9993, 7.99929, 8.85, "agrees with a second computation, between 7.999 and 8.85"),
        # Last digits of the two computations differ: no lower bound above what is stated.
        (2.0, 2.0000004, 2.0000008, "agrees with a second computation, between 2 and 2.001"),
        (3.0, 2.5, 2.6, "not too small: a second computation needs at most 2.6"),
        (3.0, 2.5, math.inf, "not too small: a second computation needs 2.5 (no second upper"),
        (1.0, 2.5, 2.6, "too small: a second computation needs ε = 2.5 at least"),
    ],
)
def test_a_lower_bound_reads_like_a_violation_only_where_it_is_one(stated, least, most, words):
    assert words in str(AccountAudit("ann", "", 3, stated, least, most, 1e-5))
