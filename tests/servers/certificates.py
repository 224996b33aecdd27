"""An authority of our own, and what it certified: a server, and a client."""

import tempfile
import weakref
from pathlib import Path
from shutil import rmtree
from typing import Any

import trustme


class Certificates:
    """Files in a folder that goes with the object.

    `server` are lines of a server's config file; `shown` are options of a redis-py client that
    shows a certificate (for ``tls_auth_clients="yes"``). `other_host` is the chain and the key of
    another server.
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="redislock-tls-"))
        self._remove = weakref.finalize(self, rmtree, self.folder, ignore_errors=True)
        authority = trustme.CA()
        ca = self.folder / "ca.pem"
        authority.cert_pem.write_to_path(ca)
        certificate, key = self._issue(authority, "127.0.0.1")
        self.server: dict[str, Any] = {
            "tls_cert_file": certificate,
            "tls_key_file": key,
            "tls_ca_cert_file": ca,
            "tls_auth_clients": "no",
        }
        self.other_host = self._issue(authority, "other.test")
        certificate, key = self._issue(authority, "client.test")
        self.shown: dict[str, Any] = {
            "ssl_ca_certs": str(ca),
            "ssl_certfile": str(certificate),
            "ssl_keyfile": str(key),
        }

    def _issue(self, authority: trustme.CA, identity: str) -> tuple[Path, Path]:
        issued = authority.issue_cert(identity)
        chain, key = self.folder / f"{identity}.pem", self.folder / f"{identity}.key"
        for blob in issued.cert_chain_pems:
            blob.write_to_path(chain, append=True)
        issued.private_key_pem.write_to_path(key)
        return chain, key
