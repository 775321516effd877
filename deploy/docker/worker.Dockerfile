# docker build -f deploy/docker/worker.Dockerfile -t quire-worker . A CPU-only image has a tenth of the size:
# --build-arg PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
ARG PYTHON=3.12-slim-bookworm

FROM python:${PYTHON} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
ARG PIP_EXTRA_INDEX_URL
WORKDIR /src
COPY . .
RUN python -m venv /opt/quire && /opt/quire/bin/pip install -c constraints.txt '.[worker]'
# Lists the Python packages in /opt/quire, with versions and licences.
RUN pip install cyclonedx-bom==7.5.0 \
    && cyclonedx-py environment --output-file /opt/quire/sbom.cdx.json /opt/quire/bin/python

FROM python:${PYTHON}
# Triton compiles a small C module for each kernel when it first runs.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
LABEL org.opencontainers.image.title="quire-worker" org.opencontainers.image.licenses="Apache-2.0"
ENV PATH=/opt/quire/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HF_HOME=/models TRITON_CACHE_DIR=/models/triton
COPY --from=build /opt/quire /opt/quire
# Models downloaded from the hub, and compiled kernels. Mount a volume here to keep them.
RUN install -d -o 10001 -g 10001 /models
VOLUME /models
USER 10001:10001
EXPOSE 50071
HEALTHCHECK --interval=10s --timeout=5s --start-period=300s --retries=3 CMD ["quire", "health", "localhost:50071"]
ENV QUIRE_LISTEN=0.0.0.0:50071 QUIRE_METRICS_HOST=0.0.0.0 QUIRE_LOG_FORMAT=json
ENTRYPOINT ["quire", "worker"]
