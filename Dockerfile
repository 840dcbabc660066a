# Two images of one wheel: `service` (api and tuner) and `worker` (standard library and NumPy).
#
#   docker build --target service -t tilewright .
#   docker build --target worker -t tilewright-worker .

FROM python:3.12-slim AS build
RUN apt-get update \
 && apt-get install -y --no-install-recommends gcc libc6-dev \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY pyproject.toml setup.py README.md LICENSE ./
COPY tilewright tilewright
COPY compiler compiler
COPY tuner tuner
COPY db db
COPY service service
# the C runtime and the harness are compiled here and lie in the wheel: no later image needs a compiler
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels . \
 && python -m zipfile --list /wheels/*.whl | grep -q harness/harness-

FROM python:3.12-slim AS base
ENV PYTHONUNBUFFERED=1
# the worker is another user than the service: it cannot read the service's files where both lie
# on one disk. A new volume takes the owner of the folder that it is mounted on
RUN useradd --create-home --uid 1000 tilewright \
 && useradd --create-home --uid 1001 worker \
 && install -d -o tilewright -m 700 /var/lib/tilewright \
 && install -d -o worker -m 700 /var/lib/tilewright-worker /var/lib/tilewright-token
COPY --from=build /wheels /wheels

FROM base AS worker
RUN pip install --no-cache-dir /wheels/*.whl && rm -r /wheels
USER worker
WORKDIR /var/lib/tilewright-worker
ENV TILEWRIGHT_SPOOL=/var/lib/tilewright-worker
VOLUME /var/lib/tilewright-worker
ENTRYPOINT ["tilewright-worker"]

FROM base AS service
# lld links a batch of candidates into the shared object that a worker loads
RUN apt-get update \
 && apt-get install -y --no-install-recommends lld \
 && rm -rf /var/lib/apt/lists/* \
 && wheel=$(echo /wheels/*.whl) \
 && pip install --no-cache-dir "tilewright[all,dask,s3] @ file://${wheel}" \
 && rm -r /wheels
USER tilewright
WORKDIR /var/lib/tilewright
# the records outlive the container: they lie in the volume
ENV TILEWRIGHT_DATA_FOLDER=/var/lib/tilewright
VOLUME /var/lib/tilewright
EXPOSE 8080
# of `server run`; who runs a tuner of this image disables it, as docker-compose.yml does
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 CMD ["python", "-m", "tilewright.service.health"]
ENTRYPOINT ["tilewright"]
# needs TILEWRIGHT_TLS_CERTIFICATE, or TILEWRIGHT_TRUSTED_PROXIES and a proxy before it
CMD ["server", "run", "--host", "0.0.0.0", "--port", "8080"]
