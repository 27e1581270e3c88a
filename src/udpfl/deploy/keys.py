"""Certificates and keys of a federation: a CA, a certificate for the server, a key for every site.

The server proves who it is by its certificate, which the sites check with the CA's. A site proves
who it is by its key, whose public half the server has registered. Whoever holds `ca.key` can make
further certificates: keep it off the server.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from udpfl.errors import InvalidInput, MissingExtra
from udpfl.writing import write_secret

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError:
    raise MissingExtra("cryptography", "flower") from None

CA, CA_KEY, SERVER, SERVER_KEY = "ca.crt", "ca.key", "server.crt", "server.key"
SHUFFLER = "shuffler"
"""Stands for the shuffler among the names of sites."""
_CURVE = ec.SECP384R1()
_LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST = re.compile(rf"(\*\.)?({_LABEL}\.)*(?![0-9]+$){_LABEL}")
_LONGEST_HOST = 253


@dataclass(frozen=True)
class Keys:
    """A folder of keys."""

    folder: Path

    @property
    def ca(self) -> Path:
        """The certificate of the CA, which everybody may have."""
        return self.folder / CA

    @property
    def certificate(self) -> Path:
        """That of the server."""
        return self.folder / SERVER

    @property
    def key(self) -> Path:
        """That of the server, for the server alone."""
        return self.folder / SERVER_KEY

    def hosts(self) -> list[str]:
        """Names and addresses for which the server's certificate holds; none without one."""
        if not self.certificate.exists():
            return []
        try:
            found = x509.load_pem_x509_certificate(self.certificate.read_bytes())
            names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except (ValueError, x509.ExtensionNotFound):
            raise InvalidInput("host", f"{self.certificate} is not a certificate of ours") from None
        addresses = names.get_values_for_type(x509.IPAddress)
        return [*names.get_values_for_type(x509.DNSName), *map(str, addresses)]

    def site(self, name: str) -> Path:
        """The private key of a site, for that site alone; beside it lies the public one."""
        return self.folder / "sites" / name

    def public(self, name: str) -> Path:
        """What the server registers of a site."""
        return self.folder / "sites" / f"{name}.pub"


def make_keys(
    folder: Path, hosts: Sequence[str], sites: Sequence[str], days: float = 365.0
) -> Keys:
    """Make what is not there yet: the CA, the certificate of the server, and the sites' keys.

    A site that makes its own key gives no host: then its private key never leaves the site.

    Args:
        folder: Where they are kept; nobody else can read it.
        hosts: Names and addresses under which sites reach the server; none for keys of sites alone.
        sites: Names of the sites; none for the server alone.
        days: How long certificates hold; below 0 they have run out already.

    Returns:
        The folder.

    Raises:
        InvalidInput: There is neither a host nor a site, a name is none that a policy takes or that
            a server can have, or the certificate that is there is for other hosts.
    """
    if not hosts and not sites:
        raise InvalidInput("host", "is needed, the server's name or address, or else --site")
    check_names(hosts, sites)
    keys = Keys(folder)
    if hosts:
        _require_hosts(keys, hosts)
    (folder / "sites").mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    if hosts and not keys.ca.exists():
        _make_ca(keys, days)
    if hosts and not keys.certificate.exists():
        _make_server(keys, hosts, days)
    for site in sites:
        if not keys.site(site).exists():
            _make_site(keys, site)
    return keys


def check_names(hosts: Sequence[str], sites: Sequence[str]) -> None:
    """Refuse names that no certificate and no policy can have.

    Raises:
        InvalidInput: One is like that.
    """
    from udpfl.site.policy import SiteName

    for host in hosts:
        is_name = len(host) <= _LONGEST_HOST and _HOST.fullmatch(host)
        if not is_name and _address(host) is None:
            raise InvalidInput("host", f"{host!r} is neither the name nor the address of a host")
    for site in sites:
        try:
            TypeAdapter(SiteName).validate_python(site)
        except ValidationError as error:
            raise InvalidInput("site", error.errors()[0]["msg"]) from None


def _require_hosts(keys: Keys, hosts: Sequence[str]) -> None:
    """Refuse hosts for which the certificate that is there does not hold."""
    made = keys.hosts()
    if made and (others := sorted({_plain(own) for own in hosts} - set(made))):
        raise InvalidInput(
            "host",
            f"{keys.certificate} was made for {', '.join(made)}, and not for {', '.join(others)}: "
            f"remove it and {keys.key} to have a new one made for all hosts that are named, or "
            "use another folder",
        )


def make_seal(folder: Path, name: str) -> tuple[Path, str]:
    """Make a key to sign sealed messages with, or to open them; its file, and its public half.

    Args:
        folder: Where it is kept.
        name: Of the site; "shuffler" for the key that opens.
    """
    from udpfl.site.sealing import new_key, opening_public, read_key, signing_public

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.seal"
    if not path.exists():
        write_secret(path, new_key().encode())
    secret = read_key(path)
    return path, opening_public(secret) if name == SHUFFLER else signing_public(secret)


def _make_ca(keys: Keys, days: float) -> None:
    own = ec.generate_private_key(_CURVE)
    name = _name("udpfl federation CA")
    certificate = (
        _builder(name, name, own.public_key(), max(days, 1.0))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(own.public_key()), critical=False)
        .sign(own, hashes.SHA384())
    )
    write_secret(keys.folder / CA_KEY, _pem(own))
    keys.ca.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def _make_server(keys: Keys, hosts: Sequence[str], days: float) -> None:
    issuer = x509.load_pem_x509_certificate(keys.ca.read_bytes())
    signer = serialization.load_pem_private_key((keys.folder / CA_KEY).read_bytes(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    own = ec.generate_private_key(_CURVE)
    authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    certificate = (
        _builder(_name(hosts[0]), issuer.subject, own.public_key(), days)
        .add_extension(x509.SubjectAlternativeName([_host(own) for own in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(authority, critical=False)
        .sign(signer, hashes.SHA384())
    )
    write_secret(keys.key, _pem(own))
    keys.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def _make_site(keys: Keys, site: str) -> None:
    own = ec.generate_private_key(_CURVE)
    private = own.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    write_secret(keys.site(site), private)
    public = own.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    keys.public(site).write_bytes(public + f" {site}\n".encode())


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: float
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    begins = now - timedelta(days=max(1.0, 1.0 - days))
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(now + timedelta(days=days))
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _host(host: str) -> x509.GeneralName:
    address = _address(host)
    return x509.DNSName(_plain(host)) if address is None else x509.IPAddress(address)


def _plain(host: str) -> str:
    """A host as certificates have it, whose names do not depend on case."""
    address = _address(host)
    return host.lower() if address is None else str(address)


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common[:64])])


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
