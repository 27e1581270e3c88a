"""The gate of a site: every request is held against the policy before a record is touched.

    request -> policy -> plan -> reserve -> train -> charge -> message

Whatever a server sends, the gate refuses it or answers it within the site's own policy. A refusal
says why, to the server and to the site's log; nothing was trained and nothing charged then. What
the gate hands out was charged and stored in the site's ledger before.

Nothing here knows how requests travel: `answer` takes and returns plain values.
"""

from __future__ import annotations

import fcntl
import logging
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch

from udpfl._version import __version__
from udpfl.accounting.budget import Budget
from udpfl.data import DataSet, sources
from udpfl.data.records import Indices
from udpfl.errors import BudgetExceeded, InvalidInput, Refused
from udpfl.federation.request import Request
from udpfl.federation.single_client import load_client_data
from udpfl.ledger.chain import Head
from udpfl.ledger.ledger import Ledger
from udpfl.runs.folder import RunFolder
from udpfl.site._admission import AdmittedRun, admit_run, data_config
from udpfl.site._checks import account_problem
from udpfl.site._heads import HeadCodes
from udpfl.site._limits import load_noise
from udpfl.site._site_log import SiteLog
from udpfl.site.policy import Policy
from udpfl.site.reasons import plain
from udpfl.site.sealing import Letter, read_key, seal
from udpfl.site.wire import SiteAnswer, SiteFacts, SiteRequest, run_id

log = logging.getLogger(__name__)

T = TypeVar("T")

_INTERNAL = "the site could not answer; its log says why"
"""What a server is told of errors that may be about records, files or the machine."""
_MOST_OPEN = 4
"""Runs that are kept in memory."""


class Gate:
    """Answers requests for one site, within its policy.

    Args:
        policy: What the site allows.
        ledger: Where it is charged; by default the one in the folder `policy.state`.

    Example:
        >>> from udpfl.site import Gate, Policy, SiteRequest
        >>> policy = Policy.of({"name": "a", "data": {"name": "mnist5k", "declared_size": 4000},
        ...     "budget": {"epsilon": 8.0, "delta": 1e-5}, "releases": {"in_all": 80,
        ...     "sampling_rate": 0.5}, "server": {"models": [{"name": "cnn-small"}]}})
        >>> Gate(policy).answer(SiteRequest("r", {"seed": 0}, 1, {}, 0.1, cohort=1)).refused
        'the round asks 1 sites, and the policy wants at least 2'
    """

    def __init__(self, policy: Policy, ledger: Ledger | None = None) -> None:
        self.policy = policy
        self._state = Path(policy.state)
        with _in_state_folder(self._state):
            self._state.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._alone():  # the first that is written there
                self._codes = HeadCodes(self._state / "head.key")
        self.ledger = Ledger(policy.ledger) if ledger is None else ledger
        self._log = SiteLog(self._state / "site.log")
        self._open: dict[str, AdmittedRun] = {}
        if policy.code not in sys.path:
            sys.path.append(policy.code)
        load_noise(policy.releases)
        if policy.shuffler.public_key is not None:
            read_key(policy.shuffler.signing_key)  # refused now, not in the middle of a run
        if policy.machine.threads is not None:
            torch.set_num_threads(policy.machine.threads)
        self._lower_budget()

    def answer(self, request: SiteRequest) -> SiteAnswer:
        """The released message, or why there is none.

        Guarantee: a message was charged to the site's ledger, together with everything that the
        policy and the ledger hold it to, before it is returned. Without one nothing was charged.
        """
        place = {"run": request.run, "round": request.round}
        with self._alone():
            try:
                run = self._admitted(request)
                work = run.note_work(request) if self._shuffles else ""
                message = run.client.answer(self._for_client(run, request))
            except (Refused, BudgetExceeded) as refusal:
                self._log.note("refused", **place, why=plain(refusal))
                log.info(
                    "refused round %d of run %s: %s", request.round, request.run, plain(refusal)
                )
                return self._without_message(plain(refusal), is_final=True)
            except Exception:  # what it says may be about records: it stays here
                why = plain(traceback.format_exc())
                self._log.note("problem", **place, why=why)
                log.error("round %d of run %s: %s", request.round, request.run, why)
                return self._without_message(_INTERNAL, is_final=False)
            stated = run.client.statement()
            self._log.note("answered", **place, spent=stated.short)
            answer = SiteAnswer(self.policy.name, message, head=self._head, privacy=stated)
            return self._sealed(answer, request, work) if self._shuffles else answer

    @property
    def _shuffles(self) -> bool:
        return self.policy.shuffler.public_key is not None

    def _sealed(self, answer: SiteAnswer, request: SiteRequest, work: str) -> SiteAnswer:
        """The answer with a message that only the shuffler of the policy can open."""
        shuffler = self.policy.shuffler
        assert shuffler.public_key is not None
        letter = Letter(self.policy.name, request.run, request.round, work, answer.message)
        sealed = seal(letter, read_key(shuffler.signing_key), shuffler.public_key)
        return replace(answer, message=sealed, is_sealed=True)

    def handle(self, about: Mapping[str, Any], body: bytes = b"") -> tuple[dict[str, Any], bytes]:
        """Answer what came over a wire: `about` says what is asked.

        Whatever it is, an answer comes back: a table, and the bytes of a message if there is one.
        """
        try:
            match about.get("ask"):
                case "describe":
                    return self.describe().to_dict(), b""
                case "finish":
                    self.finish(_read(run_id, about.get("run")))
                    return self._without_message("", is_final=True).to_dict(), b""
                case "train":
                    answer = self.answer(_read(SiteRequest.read, body, about.get("address")))
                    return answer.to_dict(), answer.message
                case other:
                    raise Refused(f"a site cannot be asked to {str(other)[:40]!r}")
        except Refused as refusal:
            self._log.note("refused", why=plain(refusal))
            log.info("refused a request: %s", plain(refusal))
            return self._without_message(plain(refusal), is_final=True).to_dict(), b""
        except Exception:
            why = plain(traceback.format_exc())
            self._log.note("problem", why=why)
            log.error("a request could not be answered: %s", why)
            return self._without_message(_INTERNAL, is_final=False).to_dict(), b""

    def describe(self) -> SiteFacts:
        """What the site says of itself: public numbers of its policy, and its last charge."""
        data, _ = self._data
        return SiteFacts(
            site=self.policy.name,
            declared_size=self.policy.data.declared_size,
            input_shape=data.input_shape,
            outputs=data.outputs,
            task=data.task,
            epsilon=self.policy.budget.epsilon,
            delta=self.policy.budget.delta,
            input_type=str(data.train.inputs.dtype),
            head=self._head,
            udpfl=__version__,
        )

    def finish(self, run: str) -> None:
        """Give back what a run has reserved and will not spend, because the server has ended it."""
        with self._alone():
            if self.ledger.knows(run_id(run)):
                self._open.pop(run, None)
                freed = self.ledger.give_back(run, reason="the server has ended the run")
                self._log.note("finished", run=run, freed=freed)

    def require_account(self) -> None:
        """Refuse where the budgets of policy and ledger cannot be compared.

        Raises:
            Refused: They have another δ, or another kind of account; it says which keys.
        """
        if problem := account_problem(self.policy, self.ledger):
            raise Refused(problem)
        _, known = self._known_budget()
        if known and known.delta != self.policy.budget.delta:
            raise Refused(
                f"the policy of this site has δ = {self.policy.budget.delta:g}, and its ledger "
                f"δ = {known.delta:g}: nothing is released until the site has put that right"
            )

    def close(self) -> None:
        """Close the ledger."""
        self.ledger.close()

    @cached_property
    def _data(self) -> tuple[DataSet, Indices]:
        own = self.policy.data
        found = load_client_data(data_config(self.policy), own.part, keeps_test=own.test > 0)
        if found[0].labels_found:
            raise InvalidInput(
                "data.options.labels" if own.name in sources() else "data.name",
                "must state the labels (for your own records as the number of `classes`): those "
                "that are read off the records would leave the site as the number of classes, and "
                "one more record could move all others to another class",
            )
        return found

    @property
    def _head(self) -> Head:
        return self._codes.of(Head(*self.ledger.head()))

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One request at a time, whichever process it came to."""
        with (self._state / ".lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _without_message(self, why: str, *, is_final: bool) -> SiteAnswer:
        try:
            head = self._head
        except Exception:
            head = Head(0, "")
        return SiteAnswer(self.policy.name, refused=why, is_final=is_final, head=head)

    def _admitted(self, request: SiteRequest) -> AdmittedRun:
        """The run of a request: in memory, in its folder, or begun now."""
        self._require_charges(request.head)
        self.require_account()
        run = self._open.get(request.run)
        if run is None:
            run = admit_run(self.policy, self.ledger, self._data, request)
            self._open = dict([*self._open.items(), (request.run, run)][-_MOST_OPEN:])
        run.check_request(request)
        return run

    def _for_client(self, run: AdmittedRun, request: SiteRequest) -> Request:
        device = run.rounds.setup.device
        tensors = {name: tensor.to(device) for name, tensor in request.tensors.items()}
        return Request(
            request.round, tensors, request.learning_rate, request.settled, request.steps
        )

    def _require_charges(self, known: Head) -> None:
        """Refuse where the ledger lacks a charge that was made: this one is older, or another."""
        noted = [Head(*RunFolder(path).last_charge()) for path in self._state.glob("runs/*")]
        missing = [own.number for own in noted if not self.ledger.holds(*own)]
        if not self._codes.is_known(known, self.ledger):
            missing.append(known.number)
        if missing:
            raise Refused(
                f"the ledger of this site lacks charge {missing[0]}, which was made: it was "
                "restored from a backup, or is another one. Nothing is released until the "
                "site has put that right"
            )

    def _known_budget(self) -> tuple[int | None, Budget | None]:
        """The site's account in the ledger, and the budget that the ledger has for it."""
        account = self.ledger.account_of(self.policy.name, self.policy.data.block or "")
        return account, None if account is None else self.ledger.budget(account)

    def _lower_budget(self) -> None:
        """A policy may lower the budget of the ledger; it is raised there, with a reason."""
        (account, known), own = self._known_budget(), self.policy.budget.budget
        if account and known and known.delta == own.delta and own.epsilon < known.epsilon:
            self.ledger.set_budget(account, own, reason="the policy of the site")
        elif known and known != own:
            log.warning(
                "the policy says ε = %g at δ = %g, and the ledger ε = %g at δ = %g, which counts: "
                "`udpfl budget set` changes it, with a reason",
                *(own.epsilon, own.delta, known.epsilon, known.delta),
            )


@contextmanager
def _in_state_folder(state: Path) -> Iterator[None]:
    """Errors of the machine inside are about the folder that the policy names."""
    try:
        yield
    except OSError as error:
        why = error.strerror or error
        raise InvalidInput(
            "policy",
            f"state = {str(state)!r} must be a folder that this user can write to: {why}. Name "
            "another one in the policy, or run this as the user of the service",
        ) from None


def _read(read: Callable[..., T], *values: Any) -> T:
    """What came over a wire; where it is not what it should be, the server is told."""
    try:
        return read(*values)
    except InvalidInput as error:
        raise Refused(f"not a request: {error}") from error
