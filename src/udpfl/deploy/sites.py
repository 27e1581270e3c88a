"""The sites of a federation as the server's loop sees them: clients that are far away.

Each site is asked by a thread of its own, again after a while if it fails, until the round is over.
What comes back is checked before it is used: a bad reply is left out of the round, with the reason
in the log and in the journal.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from udpfl.accounting import PrivacyStatement
from udpfl.algorithms import ClientMessage
from udpfl.deploy._journal import Journal, Note
from udpfl.deploy._replies import BadReply, ReplyCheck
from udpfl.deploy.settings import DeployConfig
from udpfl.deploy.shuffling import pack, unpack
from udpfl.deploy.transport import Node, NodeId, NoReply, Reply, Transport
from udpfl.errors import InvalidInput, UdpflError
from udpfl.federation.request import Answers, Request
from udpfl.federation.stages.trusted_server import Store
from udpfl.site.reasons import plain
from udpfl.site.wire import NO_HEAD, SiteAnswer, SiteFacts, SiteRequest

log = logging.getLogger(__name__)

T = TypeVar("T")

_DESCRIBE = 60.0
"""Seconds within which a node has to say which site it is."""
_AGAIN = 20.0
"""Seconds after which a node that did not is asked again."""
_SAID_EVERY = 10.0
"""Seconds after which the log says again which sites are waited for."""


class RunPaused(UdpflError):
    """Too few sites answer. What was aggregated is kept, and the run can be resumed."""


@dataclass
class Directory:
    """Which node speaks for which site."""

    transport: Transport
    facts: dict[str, SiteFacts] = field(default_factory=dict)
    """What every site said of itself, by its name."""
    shuffler: NodeId | None = None
    """The node that mixes messages, if there is one."""
    _nodes: dict[str, NodeId] = field(default_factory=dict)
    _known: dict[NodeId, str] = field(default_factory=dict)
    """The site of a node; empty for one that is none."""
    _silent: dict[NodeId, float] = field(default_factory=dict)
    """When a node did not say it."""
    _looking: threading.Lock = field(default_factory=threading.Lock)

    def look(self) -> None:
        """Ask nodes that are new which site they are, all at the same time."""
        with self._looking:
            self._look()

    def _look(self) -> None:
        there = self.transport.nodes()
        for gone in self._known.keys() - {node.id for node in there}:
            site = self._known.pop(gone)
            self.shuffler = None if self.shuffler == gone else self.shuffler
            if self._nodes.get(site) == gone:
                del self._nodes[site]
        now = time.monotonic()
        new = [own for own in there if own.id not in self._known and self._later(own.id) <= now]
        _all_at_once(self._meet, new)

    def _meet(self, node: Node) -> None:
        try:
            reply = self.transport.ask(
                node.id, {"ask": "describe"}, b"", _DESCRIBE, threading.Event()
            )
            if why := reply.about.get("refused"):
                raise NoReply(str(why))
            if "shuffler" in reply.about:
                self.shuffler, self._known[node.id] = node.id, ""
                return
            facts = SiteFacts.read(reply.about)
        except NoReply as error:
            log.info("node %d does not say which site it is: %s", node.id, error)
            self._silent[node.id] = time.monotonic()
            return
        except (InvalidInput, TypeError) as error:
            log.warning("node %d is not a site: %s", node.id, error)
            self._known[node.id] = ""
            return
        if node.name and node.name != facts.site:
            log.warning(
                "node %d is registered as %s and says that it is %s: it is left out",
                *(node.id, node.name, facts.site),
            )
            self._known[node.id] = ""
            return
        self._known[node.id] = facts.site
        self._nodes[facts.site] = node.id  # the node that came last speaks for a site
        self.facts[facts.site] = facts

    def _later(self, node: NodeId) -> float:
        """When a node is asked again which site it is."""
        return self._silent.get(node, -_AGAIN) + _AGAIN

    def node_of(self, site: str) -> NodeId | None:
        """The node that speaks for a site; None where it is not there."""
        return self._nodes.get(site)

    def find(self, site: str) -> NodeId | None:
        """The same, with a look at who is there if it is not known."""
        if site not in self._nodes:
            self.look()
        return self.node_of(site)

    def forget(self, site: str) -> None:
        """A node did not answer: whether it is still there is looked at anew."""
        node = self._nodes.pop(site, None)
        if node is not None:
            self._known.pop(node, None)


def gather(directory: Directory, deploy: DeployConfig, wanted: int) -> list[str]:
    """Wait until the sites of a federation are there; their names, in the order that counts.

    The log says now and then who is there.

    Raises:
        RunPaused: They did not come in time.
    """
    with _said_again(lambda: _log_waiting(directory, deploy, wanted)):
        return _gathered(directory, deploy, wanted)


@contextmanager
def _said_again(say: Callable[[], None]) -> Iterator[None]:
    """Say something every few seconds, from a thread of its own."""
    over = threading.Event()

    def again() -> None:
        while not over.wait(_SAID_EVERY):
            say()

    threading.Thread(target=again, daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _log_waiting(directory: Directory, deploy: DeployConfig, wanted: int) -> None:
    known = list(deploy.sites) or sorted(directory.facts)
    there = [site for site in known if directory.node_of(site) is not None]
    missing = [site for site in known if site not in there]
    if deploy.shuffler == "node" and directory.shuffler is None:
        missing.append("the shuffler")
    said = f"waiting for {wanted} sites, {len(there)} are there"
    said += f" ({', '.join(there)})" if there else ""
    said += f"; {', '.join(missing)} missing" if missing else ""
    log.info("%s", plain(said))


def _gathered(directory: Directory, deploy: DeployConfig, wanted: int) -> list[str]:
    ends = time.monotonic() + deploy.start_timeout
    while True:
        directory.look()
        there = deploy.sites or sorted(directory.facts)
        missing = [site for site in there if directory.node_of(site) is None]
        if deploy.shuffler == "node" and directory.shuffler is None:
            missing.append("the shuffler")
        if not missing and len(there) >= wanted:
            return list(there[:wanted])
        if time.monotonic() > ends:
            said = f"{', '.join(missing)} missing" if missing else f"{len(there)} of {wanted}"
            raise RunPaused(
                f"not all sites were there after {deploy.start_timeout:g} seconds: {said}"
            )
        time.sleep(deploy.poll_every)


@dataclass(frozen=True)
class _Outcome:
    """What became of one site in a round."""

    site: str
    message: bytes = b""
    """Checked, or sealed."""
    refused: str = ""
    """By the site's own words."""
    ignored: str = ""
    """By the server."""


@dataclass(frozen=True)
class _Asking:
    """One site that is asked in one round."""

    site: str
    round: int
    about: Mapping[str, Any]
    body: bytes
    ends: float
    """When the round is over, by `time.monotonic`."""
    stop: threading.Event
    """Set when the round went on without this site."""
    outcomes: queue.Queue[_Outcome]


class RemoteSites:
    """Asks the sites of a run. The loop takes it for the clients.

    Args:
        run: The id of the run.
        settings: What is proposed to the sites.
        names: Of the sites, in the order of the schedule.
        directory: Finds their nodes.
        deploy: Timeouts and retries.
        check: Says whether a message can be used.
        journal: Keeps what sites say.
        store: Keeps what a shuffler has mixed: a round is mixed once.
    """

    def __init__(
        self,
        run: str,
        settings: Mapping[str, Any],
        names: Sequence[str],
        directory: Directory,
        deploy: DeployConfig,
        check: ReplyCheck,
        journal: Journal,
        store: Store,
    ) -> None:
        self._run, self._settings, self._names = run, settings, names
        self._directory, self._deploy = directory, deploy
        self._check, self._journal, self._store = check, journal, store
        self._heads = dict(journal.heads())
        self._statements = dict(journal.statements())
        self._lock = threading.Lock()

    def heads(self) -> dict[str, tuple[int, str]]:
        """The last charge of every site, by its own words."""
        return {site: (head.number, head.chain) for site, head in self._heads.items()}

    def statements(self) -> dict[str, PrivacyStatement]:
        """What every site has spent, by its own words."""
        return dict(self._statements)

    def answer(self, request: Request, chosen: Sequence[int]) -> Answers:
        """The answers of the sites with these numbers, as far as they come and can be used.

        Raises:
            RunPaused: There are too few of them, however often they are asked.
        """
        if self._is_mixed and (stored := self._store.read_aggregate(request.round)) is not None:
            return Answers(self._read_mixed(request.round, unpack(stored)))
        asked = [self._names[number] for number in chosen]
        enough = self._deploy.enough or len(asked) // 2 + 1
        done: dict[str, _Outcome] = {}
        for _ in range(self._deploy.pause_after):
            waiting = [site for site in asked if not _is_settled(done.get(site))]
            done |= self._ask_all(request, waiting, len(asked))
            sent = [own for own in done.values() if own.message]
            if len(sent) >= min(enough, len(asked) - _count_refused(done)):
                return self._answers(request, asked, done)
            log.warning(
                "round %d: %d of %d sites answered, and %d are needed: asking again",
                *(request.round, len(sent), len(asked), enough),
            )
        raise RunPaused(
            f"round {request.round} has {len(sent)} answers of {len(asked)}, and {enough} are "
            "needed (deploy.enough): the run stops here and can be resumed"
        )

    def _answers(
        self, request: Request, asked: Sequence[str], done: Mapping[str, _Outcome]
    ) -> Answers:
        found = [done[site] for site in asked if site in done]
        sent = [own.message for own in found if own.message]
        return Answers(
            messages=self._opened(request.round, sent),
            refused={own.site: own.refused for own in found if own.refused},
            ignored={own.site: own.ignored for own in found if own.ignored},
            bytes_up=sum(map(len, sent)),
            bytes_down=request.bytes * len(asked),
        )

    def _opened(self, round_: int, sent: Sequence[bytes]) -> list[ClientMessage]:
        """The messages; where a shuffler lies between, mixed and without names."""
        if not self._is_mixed or not sent:
            return [ClientMessage.from_bytes(own) for own in sent]
        mixed = self._mixed(round_, sent)
        self._store.write_aggregate(round_, pack(mixed))
        return self._read_mixed(round_, mixed)

    def _read_mixed(self, round_: int, mixed: Sequence[bytes]) -> list[ClientMessage]:
        messages = []
        for own in mixed:
            try:
                messages.append(self._check("", round_, own))
            except BadReply as error:
                log.warning("round %d goes on without a message: %s", round_, error)
        return messages

    def _mixed(self, round_: int, sent: Sequence[bytes]) -> list[bytes]:
        """Hand sealed messages to the shuffler, again if it does not answer."""
        about, why = {"ask": "shuffle", "run": self._run, "round": round_}, "it is not there"
        for attempt in range(self._deploy.attempts):
            time.sleep(self._deploy.wait_before(attempt))
            try:
                if self._directory.shuffler is None:
                    self._directory.look()
                if (node := self._directory.shuffler) is None:
                    continue
                reply = self._directory.transport.ask(
                    node, about, pack(sent), self._deploy.round_timeout, threading.Event()
                )
            except NoReply as error:
                why = str(error)
                continue
            if not (why := str(reply.about.get("refused", ""))):
                return unpack(reply.body)
        raise RunPaused(f"round {round_}: the shuffler does not mix the messages: {why}")

    @property
    def _is_mixed(self) -> bool:
        return self._deploy.shuffler == "node"

    def _ask_all(self, request: Request, sites: Sequence[str], cohort: int) -> dict[str, _Outcome]:
        """Ask sites at the same time, until all have answered or the round is over."""
        outcomes: queue.Queue[_Outcome] = queue.Queue()
        stop, ends = threading.Event(), time.monotonic() + self._deploy.round_timeout
        base = SiteRequest(
            self._run,
            self._settings,
            request.round,
            request.tensors,
            request.learning_rate,
            cohort,
            request.settled,
            request.steps,
        )
        body = base.body()
        threading.Thread(target=self._directory.look, daemon=True).start()
        for site in sites:
            own = replace(base, client=self._names.index(site), head=self._heads.get(site, NO_HEAD))
            about = {"ask": "train", "address": own.address()}
            asking = _Asking(site, request.round, about, body, ends, stop, outcomes)
            threading.Thread(target=self._ask_one, args=(asking,), daemon=True).start()
        done: dict[str, _Outcome] = {}
        while len(done) < len(sites):
            try:
                found = outcomes.get(timeout=max(0.0, ends - time.monotonic()))
            except queue.Empty:
                break
            done[found.site] = found
        stop.set()
        for site in sites:
            if site not in done:
                late = f"no answer within {self._deploy.round_timeout:g} seconds"
                done[site] = self._ignored(site, request.round, late)
                self._directory.forget(site)
        return done

    def _ask_one(self, asking: _Asking) -> None:
        """Ask a site, and again after a while if it fails, until there is an outcome."""
        why = ""
        for attempt in range(self._deploy.attempts):
            if asking.stop.wait(self._deploy.wait_before(attempt)):
                return
            try:
                reply = self._reply(asking)
                outcome = self._read(asking.site, asking.round, reply)
                if outcome is not None:
                    asking.outcomes.put(outcome)
                    return
                why = "it could not answer"
            except NoReply as error:
                why = str(error)
            except Exception as error:  # whatever a reply held, the round goes on
                log.exception("round %d: asking %s", asking.round, asking.site)
                why = f"{type(error).__name__}: {error}"
        if not asking.stop.is_set():
            asking.outcomes.put(self._ignored(asking.site, asking.round, why))

    def _reply(self, asking: _Asking) -> Reply:
        directory, left = self._directory, asking.ends - time.monotonic()
        node = directory.find(asking.site)
        if node is None or left <= 0:
            raise NoReply("its node is not there")
        try:
            return directory.transport.ask(node, asking.about, asking.body, left, asking.stop)
        except NoReply:
            directory.forget(asking.site)
            raise

    def _read(self, site: str, round_: int, reply: Reply) -> _Outcome | None:
        """What came of a reply; None where asking again may help."""
        try:
            answer = SiteAnswer.read(reply.body, reply.about)
            if answer.site != site:
                raise BadReply(f"it says that it is {answer.site!r}")
            if answer.refused and not answer.is_final:
                log.warning("round %d: %s: %s", round_, site, answer.refused)
                return None
            if answer.message and answer.is_sealed != self._is_mixed:
                kind = "sealed for a shuffler" if answer.is_sealed else "not sealed"
                raise BadReply(f"a message that is {kind}, and the run is not like that")
            self._check.require_short(answer.message)  # nobody but the shuffler reads a sealed one
            if answer.message and not answer.is_sealed:
                self._check(site, round_, answer.message)
        except (BadReply, InvalidInput, TypeError) as error:
            return self._ignored(site, round_, f"a bad reply: {error}")
        if not answer.message and not answer.refused:
            return self._ignored(site, round_, "a bad reply: it sent nothing")
        self._note(answer, round_)
        return _Outcome(site, answer.message, answer.refused)

    def _note(self, answer: SiteAnswer, round_: int) -> None:
        """Keep what a site says of its ledger, before its message is used."""
        stated, what = answer.privacy, "refused" if answer.refused else "answered"
        said = None if stated is None else stated.to_dict()
        with self._lock:
            note = Note(answer.site, round_, what, answer.refused, answer.head, said)
            self._journal.add(note)
            if answer.head.number >= self._heads.get(answer.site, NO_HEAD).number:
                self._heads[answer.site] = answer.head
            if stated is not None:
                self._statements[answer.site] = stated

    def _ignored(self, site: str, round_: int, why: str) -> _Outcome:
        log.warning("round %d goes on without %s: %s", round_, site, why)
        with self._lock:
            self._journal.add(Note(site, round_, "ignored", why))
        return _Outcome(site, ignored=why)

    def finish(self) -> None:
        """Tell the sites that the run is over, so that they free what they have reserved."""
        _all_at_once(self._tell_end, self._names)

    def _tell_end(self, site: str) -> None:
        node, about = self._directory.node_of(site), {"ask": "finish", "run": self._run}
        try:
            if node is None:
                raise NoReply("its node is not there")
            self._directory.transport.ask(node, about, b"", _DESCRIBE, threading.Event())
        except NoReply as error:
            log.info("%s was not told that the run is over: %s", site, error)


def _all_at_once(ask: Callable[[T], None], asked: Sequence[T]) -> None:
    """Ask in threads, and wait as long as a short answer may take."""
    threads = [threading.Thread(target=ask, args=(own,), daemon=True) for own in asked]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_DESCRIBE + 1)


def _is_settled(outcome: _Outcome | None) -> bool:
    """Whether it is of no use to ask a site again in a round."""
    return outcome is not None and not outcome.ignored


def _count_refused(done: Mapping[str, _Outcome]) -> int:
    return sum(bool(own.refused) for own in done.values())
