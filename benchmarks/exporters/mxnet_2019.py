"""Networks of MXNet's model zoo, exported by the MXNet release of October 2019."""

from __future__ import annotations

from functools import partial

from benchmarks.exporters.mxnet import make
from benchmarks.exporters.written import Maker, make_all

NETWORKS = ("squeezenet1_0", "squeezenet1_1")
"""Networks without batch normalisation, because engines reject all batch normalisations of this
exporter."""

MAKERS: dict[str, Maker] = {
    f"mx19-{name.replace('_', '-')}": partial(make, name) for name in NETWORKS
}

if __name__ == "__main__":
    make_all(MAKERS)
