"""How a secret may look where it must not stand."""

from __future__ import annotations

import base64
from urllib.parse import quote


def forms(secret: str) -> list[bytes]:
    """Plain, as Java holds it, in a URL, and within text in base64."""
    raw = secret.encode()
    encoded = [base64.b64encode(b" " * shift + raw)[4:-4] for shift in range(3)]
    return [raw, secret.encode("utf-16-be"), quote(secret).encode(), quote(secret, safe="").encode(), *encoded]
