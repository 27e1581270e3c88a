"""`udpfl deploy`: the app that init writes, keys, status, and what is asked wrongly."""

from __future__ import annotations

import json
import os
import re
import stat
import sys
import tomllib
from datetime import UTC, datetime

import pytest
from cryptography import x509
from typer.testing import CliRunner

from tests.deploy.memory import federation, memory
from tests.repository import ROOT
from tests.site.samples import policy as small_policy
from udpfl import InvalidInput, Unsupported
from udpfl.cli.app import app as cli
from udpfl.cli.app import call
from udpfl.cli.deploy import _time_for as time_for
from udpfl.deploy import Federation, run_federation
from udpfl.deploy.keys import make_keys
from udpfl.deploy.settings import DeployConfig
from udpfl.deploy.starting import part_sizes, write_app
from udpfl.deploy.status import status_of
from udpfl.site import Gate, Policy

pytestmark = pytest.mark.usefixtures("one_thread")


def said(*words):
    done = CliRunner().invoke(cli, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_init_writes_an_app_and_policies_that_can_be_read(tmp_path):
    output = said(
        "deploy", "init", str(tmp_path / "my-federation"), "--sites", "4", "--rounds", "7"
    )
    folder = tmp_path / "my-federation"
    assert "README.md" in output
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    assert project["project"]["dependencies"] == []
    assert project["tool"]["flwr"]["app"]["components"] == {
        "serverapp": "my_federation.server_app:app",
        "clientapp": "my_federation.client_app:app",
    }
    own = Federation.read(folder / "my_federation" / "federation.toml")
    assert (own.config.data.clients, own.config.training.rounds) == (4, 7)
    policies = [Policy.read(path) for path in sorted(folder.glob("sites/*/policy.toml"))]
    assert [own.data.declared_size for own in policies] == [1000] * 4
    assert {own.releases.in_all for own in policies} == {7}
    for path in folder.rglob("*.py"):
        compile(path.read_text(), str(path), "exec")
    assert "/sites/" in (folder / ".gitignore").read_text()


def test_the_file_of_a_federation_is_checked_with_its_own_section(tmp_path):
    file = write_app(tmp_path / "app", sizes=[1, 1]).federation
    assert "right" in said("config", "check", str(file))
    words = ["config", "check", str(file), "--set"]
    for change, key in [
        ("deploy.atempts=2", "deploy.atempts"),
        ("deploy.enough=9", "deploy.enough"),
    ]:
        done = CliRunner().invoke(cli, [*words, change, "--set", "deploy.shuffler='server'"])
        assert done.exit_code == 2
        assert f"  {key}: " in done.stderr


def test_the_page_lists_every_key_of_the_section():
    page = (ROOT / "docs" / "deployment.md").read_text()
    table = page.split("### The keys of `[deploy]`")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", table, re.M)
    assert [key for key, _ in rows] == list(DeployConfig.model_fields)
    for key, shown in rows:
        default = DeployConfig.model_fields[key].default
        assert shown.strip("`") == ("more than half" if default is None else json.dumps(default))


@pytest.mark.parametrize("name", ["7", "-", "_"])
def test_a_folder_whose_name_cannot_be_that_of_an_app_is_refused(tmp_path, name):
    with pytest.raises(InvalidInput, match="letter"):
        write_app(tmp_path / name, sizes=[1, 1])


def test_a_folder_that_is_not_empty_is_refused(tmp_path):
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "mine").write_text("")
    with pytest.raises(InvalidInput, match="not empty"):
        write_app(tmp_path / "app", sizes=[1, 1])


def test_records_and_model_of_ones_own_plug_in(tmp_path, monkeypatch):
    """As the README of the app says it."""
    app = write_app(tmp_path / "app", sizes=[400, 400, 400], rounds=2)
    for number, site in enumerate(app.sites):
        text = app.policy(site).read_text()
        text = text.replace(
            'name = "mnist5k"', f'name = "site_data:load"\noptions = {{ site = {number} }}'
        )
        text = text.replace(f"part = {number}\nparts = 3\n", "")
        text = text.replace('{ name = "cnn-small" }', '{ name = "model:network" }')
        app.policy(site).write_text(text)
    own = app.federation.read_text().replace('name = "cnn-small"', 'name = "model:network"')
    app.federation.write_text(own.replace('evaluate = "test"', 'evaluate = "none"'))
    sites = memory(tmp_path)
    sites.sites = {n: Policy.read(app.policy(site)) for n, site in enumerate(app.sites)}
    monkeypatch.syspath_prepend(str(app.folder))
    served = run_federation(Federation.read(app.federation), sites, out=tmp_path / "run")
    assert len(served.metrics) == 2
    assert next(served.model.parameters()).shape == (32, 8)


def test_a_resumed_run_imports_what_the_apps_own_file_names_and_nothing_else(tmp_path, monkeypatch):
    (tmp_path / "own_network.py").write_text(
        "from torch import nn\n\n\n"
        "def network(shape, outputs):\n    return nn.Linear(shape[0], outputs)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("udpfl.plugins._named", set())
    models = [{"name": "own_network:network"}]
    sites = memory(tmp_path, server={"models": models})
    own = federation(model={"name": "own_network:network"}, training={"rounds": 2})
    run_federation(own, sites, out=tmp_path / "run")
    monkeypatch.setattr("udpfl.plugins._named", set())  # as in a new process
    monkeypatch.delitem(sys.modules, "own_network")
    with pytest.raises(Unsupported, match=r"federation\.toml of its app"):
        run_federation(federation(training={"rounds": 2}), sites, resume=tmp_path / "run")
    assert "own_network" not in sys.modules
    served = run_federation(own, sites, resume=tmp_path / "run")
    assert len(served.metrics) == 2


def test_parts_have_even_sizes():
    assert part_sizes(4000, 3) == [1334, 1333, 1333]
    assert sum(part_sizes(4000, 7)) == 4000


def test_keys_are_made_once_and_read_by_nobody_else(tmp_path):
    folder = tmp_path / "keys"
    words = ["deploy", "keys", str(folder), "--host", "fl.example.org", "--host", "10.0.0.5"]
    output = said(*words, "--site", "clinic-a", "--seal", "--shuffler")
    assert "flwr supernode register" in output
    for name in ("ca.key", "server.key", "sites/clinic-a", "sites/clinic-a.seal", "shuffler.seal"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600, name
    certificate = x509.load_pem_x509_certificate((folder / "server.crt").read_bytes())
    ca = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    certificate.verify_directly_issued_by(ca)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fl.example.org"]
    assert [str(own) for own in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.5"]
    assert certificate.not_valid_after_utc > datetime.now(UTC)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    again = said(*words, "--site", "clinic-a", "--site", "clinic-b")
    assert "kept, made for fl.example.org, 10.0.0.5" in again
    assert again.count("kept") == 2
    assert {path: path.read_bytes() for path in before} == before
    assert (folder / "sites" / "clinic-b.pub").is_file()


def test_a_site_makes_its_own_key_and_no_certificate(tmp_path):
    made = make_keys(tmp_path / "keys", [], ["clinic-a"])
    assert sorted(os.listdir(made.folder)) == ["sites"]
    with pytest.raises(InvalidInput, match="host"):
        make_keys(tmp_path / "other", [], [])
    with pytest.raises(InvalidInput, match="at most 64 letters"):
        make_keys(tmp_path / "other", [], ["../up"])


def test_a_certificate_for_another_host_is_not_passed_off_as_made(tmp_path):
    make_keys(tmp_path / "keys", ["a.example.org", "10.0.0.5", "::1"], [])
    with pytest.raises(InvalidInput, match=r"made for a\.example\.org, 10\.0\.0\.5, ::1, and not "):
        make_keys(tmp_path / "keys", ["a.example.org", "b.example.org"], ["clinic-a"])
    assert not (tmp_path / "keys" / "sites" / "clinic-a").exists()
    assert make_keys(tmp_path / "keys", ["A.example.org", "0:0::1"], []).hosts()[0].startswith("a.")


@pytest.mark.parametrize(
    ("hosts", "sites"),
    [
        (["bad host"], []),
        (["10.0.0.256"], []),
        (["fl.example.org:8000"], []),
        (["-a.example.org"], []),
        ([""], []),
        ([], ["Klinik Süd"]),
        ([], ["a" * 65]),
        ([], [""]),
    ],
)
def test_names_that_nobody_can_have_get_no_key(tmp_path, hosts, sites):
    with pytest.raises(InvalidInput):
        make_keys(tmp_path / "keys", hosts, sites)
    assert not (tmp_path / "keys").exists()


def test_the_status_of_a_run_is_what_sites_reported(tmp_path):
    own = federation(training={"rounds": 2})
    run_federation(own, memory(tmp_path), out=tmp_path / "run")
    found = status_of(tmp_path / "run")
    assert (found.state, found.round, found.rounds) == ("finished", 2, 2)
    assert [site.site for site in found.sites] == ["client-0", "client-1", "client-2"]
    assert all(0 < site.epsilon <= 4 and site.charges == 2 for site in found.sites)
    text = said("deploy", "status", str(tmp_path / "run"))
    assert "round 2 of 2" in text
    assert "reported" in text
    plain = json.loads(said("deploy", "status", str(tmp_path / "run"), "--json"))
    assert all(site["reported"] for site in plain["sites"])
    with pytest.raises(InvalidInput, match="not a run"):
        status_of(tmp_path)


def test_a_policy_is_written_and_checked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said("site", "init", "policy.toml")
    assert CliRunner().invoke(cli, ["site", "init", "policy.toml"]).exit_code != 0
    app = write_app(tmp_path / "app", sizes=[1334, 1333, 1333])
    text = said("site", "check", str(app.policy("client-1")))
    for words in ("client-1", "ε = 8 at δ = 1e-05", "80 in all", "cnn-small", "0 charges"):
        assert words in text
    assert "warning" not in text
    assert isinstance(Gate(small_policy(tmp_path)), Gate)


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"privacy": "none"}, "privacy"),
        ({"privacy": {"ledger": "x.sqlite"}}, "privacy.ledger"),
        ({"data": {"clients": 1}}, "data.clients"),
        ({"deploy": {"enough": 11}}, "deploy.enough"),
        ({"deploy": {"sites": ["a", "a"]}}, "deploy.sites"),
        ({"deploy": {"round_timeot": 3.0}}, "deploy.round_timeot"),
        ({"deploy": {"shuffler": "node"}}, "deploy.shuffler"),
    ],
)
def test_a_federation_that_cannot_be_is_refused(values, key):
    with pytest.raises(InvalidInput) as error:
        Federation.of(values)
    assert key in dict(error.value.problems)


def refused(capfd, *words):
    assert call([str(word) for word in words]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    return line.removeprefix("udpfl: error: ")


@pytest.mark.parametrize(("rounds", "minutes"), [(1, "1 minute,"), (5, "2 minutes,")])
def test_a_demo_never_says_that_it_takes_no_time(rounds, minutes):
    assert f"about {minutes}" in time_for(rounds)


def test_what_is_wrong_is_called_as_the_command_line_calls_it(tmp_path, capfd):
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine").write_text("")
    assert refused(capfd, "deploy", "init", full).startswith("DIR: ")
    assert refused(capfd, "deploy", "demo", "--dir", full).startswith("--dir: ")
    assert refused(capfd, "deploy", "shuffler", full / "x.toml").startswith("CONFIG: there is no")
    empty = tmp_path / "empty.toml"
    empty.write_text("")
    assert refused(capfd, "deploy", "shuffler", empty).startswith("sites: is missing")
    assert refused(capfd, "site", "check", empty).startswith("name: is missing")
