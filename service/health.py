"""`python -m tilewright.service.health`: whether the service of this machine is well.

The check of the container image: it asks at the port of the settings, over TLS where these have a
certificate. Whose certificate it is says nothing here, it is this machine's own.
"""

from __future__ import annotations

import ssl
import sys
import urllib.error
import urllib.request

from tilewright.service.settings import Settings

SECONDS = 4.0
"""Less than the check's own limit, so that it ends with a sentence."""


def main() -> int:
    """0 if the service answers that its database works; else 1, with a sentence."""
    settings = Settings()
    scheme = "https" if settings.tls_certificate else "http"
    url = f"{scheme}://127.0.0.1:{settings.port}/v1/health"
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    own = urllib.request.HTTPSHandler(context=context)
    # no proxy of the environment lies between a machine and itself
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), own)
    try:
        with opener.open(url, timeout=SECONDS):
            return 0
    except (urllib.error.URLError, OSError) as error:
        sys.stderr.write(f"{url}: {error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
