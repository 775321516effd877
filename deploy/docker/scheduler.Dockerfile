# docker build -f deploy/docker/scheduler.Dockerfile -t quire-scheduler .
ARG PYTHON=3.12-slim-bookworm

FROM python:${PYTHON} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /src
COPY . .
RUN python -m venv /opt/quire && /opt/quire/bin/pip install -c constraints.txt '.[scheduler]'
# Lists the Python packages in /opt/quire, with versions and licences.
RUN pip install cyclonedx-bom==7.5.0 \
    && cyclonedx-py environment --output-file /opt/quire/sbom.cdx.json /opt/quire/bin/python

FROM python:${PYTHON}
LABEL org.opencontainers.image.title="quire-scheduler" org.opencontainers.image.licenses="Apache-2.0"
ENV PATH=/opt/quire/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
COPY --from=build /opt/quire /opt/quire
USER 10001:10001
EXPOSE 50052
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s --retries=3 CMD ["quire", "health", "localhost:50052"]
ENV QUIRE_LISTEN=0.0.0.0:50052 QUIRE_METRICS_HOST=0.0.0.0 QUIRE_LOG_FORMAT=json
ENTRYPOINT ["quire", "scheduler"]
