"""Who may ask, and what a browser may do with the answers."""

from __future__ import annotations

import hmac
from dataclasses import dataclass

from starlette.datastructures import Headers

from konvoi.serve.refusal import Refusal

# Nothing is loaded from elsewhere, nothing runs that is not a file of ours; blob: is the picture that was just chosen.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
# The page itself must load without a token, or nobody could enter one.
WITH_TOKEN = ("/api/", "/metrics")
LOOPBACK_NAMES = frozenset({"127.0.0.1", "localhost", "[::1]"})
MIN_TOKEN_CHARACTERS = 16


@dataclass(frozen=True)
class Security:
    token: str | None = None
    names: frozenset[str] = LOOPBACK_NAMES
    """Under which it is reached where it wants no token."""

    def check(self, path: str, headers: Headers) -> None:
        """Raises a Refusal."""
        if self.token is None:
            self._check_name(headers)
        if not path.startswith(WITH_TOKEN):
            return
        # Else any page on the web could make a visitor's browser send requests here.
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            raise Refusal(403, "a page of another site may not use this service")
        if self.token is not None and not self._is_known(headers.get("authorization", "")):
            raise Refusal(
                401,
                "this service wants a token",
                hint="send it as Authorization: Bearer TOKEN",
                headers={"WWW-Authenticate": "Bearer"},
            )

    def _check_name(self, headers: Headers) -> None:
        """Who has no token is on this machine; under another name it is a page elsewhere that had its name pointed here
        (DNS rebinding)."""
        host = headers.get("host", "")
        name = host if host.endswith("]") else host.rsplit(":", 1)[0]
        if name.lower() not in self.names:
            raise Refusal(421, "this service answers on this machine only", hint="use http://localhost and its port")

    def _is_known(self, authorization: str) -> bool:
        scheme, _, given = authorization.partition(" ")
        # In the same time wherever the first wrong character is.
        is_same = hmac.compare_digest(given.strip().encode(), (self.token or "").encode())
        return scheme.lower() == "bearer" and is_same
