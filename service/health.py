"""`python -m tilewright.service.health`: the health check of the container image.

It sends a request to the service on this machine, at the port of the settings, over TLS if the
settings name a certificate. It does not verify the certificate, because the connection stays on
this machine.
"""

from __future__ import annotations

import ssl
import sys
import urllib.error
import urllib.request

from tilewright.service.settings import Settings

SECONDS = 4.0
"""Timeout of the health check in seconds. It is shorter than the container's timeout, so that the
check can report its failure."""


def main() -> int:
    """Check the service and its database.

    Return 0 if both answer; otherwise print the error and return 1.
    """
    settings = Settings()
    scheme = "https" if settings.tls_certificate else "http"
    url = f"{scheme}://127.0.0.1:{settings.port}/v1/health"
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    own = urllib.request.HTTPSHandler(context=context)
    # a connection to this machine must not use a proxy of the environment
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), own)
    try:
        with opener.open(url, timeout=SECONDS):
            return 0
    except (urllib.error.URLError, OSError) as error:
        sys.stderr.write(f"{url}: {error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
