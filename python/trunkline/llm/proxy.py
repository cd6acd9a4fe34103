"""Which URLs go through a proxy: what the environment says, as the standard library reads it."""

from __future__ import annotations

import ipaddress
from urllib.request import getproxies, proxy_bypass

import aiohttp
from yarl import URL

__all__ = ["is_loopback", "proxy_of"]


def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine by definition."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def proxy_of(target: URL) -> tuple[str | None, dict[str, str] | None]:
    """Find the proxy for a URL; a loopback address never has one.

    Returns:
        The proxy's URL without its user, and the headers that say who the user is; None for what is not there.
    """
    host = target.host or ""
    if is_loopback(host) or proxy_bypass(host):
        return None, None
    proxies = getproxies()
    found = proxies.get(target.scheme) or proxies.get("all")
    if not found:
        return None, None
    proxy = URL(found if "://" in found else f"http://{found}")
    if proxy.user is None:
        return str(proxy), None
    return str(proxy.with_user(None)), {
        "Proxy-Authorization": aiohttp.encode_basic_auth(proxy.user, proxy.password or "")
    }
