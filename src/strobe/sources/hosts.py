"""Which servers are on this machine: what is sent to them passes no network."""

from __future__ import annotations

from ipaddress import ip_address

LOCAL_NAMES = {"localhost", "localhost.", "ip6-localhost"}


def is_local(host: str) -> bool:
    """Whether a host is this machine: by an address of the loopback interface, by a name that machines give themselves,
    or by the path of a Unix socket. Other names count as somewhere else, whatever they resolve to."""
    if host.startswith(("/", "@")):
        return True
    try:
        return ip_address(host.strip("[]").partition("%")[0]).is_loopback
    except ValueError:
        return host.lower() in LOCAL_NAMES
