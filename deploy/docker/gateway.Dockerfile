# docker build -f deploy/docker/gateway.Dockerfile -t quire-gateway .
ARG PYTHON=3.12-slim-bookworm

FROM python:${PYTHON} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /src
COPY . .
RUN python -m venv /opt/quire && /opt/quire/bin/pip install -c constraints.txt '.[gateway]'
# Lists the Python packages in /opt/quire, with versions and licences.
RUN pip install cyclonedx-bom==7.5.0 \
    && cyclonedx-py environment --output-file /opt/quire/sbom.cdx.json /opt/quire/bin/python

FROM python:${PYTHON}
LABEL org.opencontainers.image.title="quire-gateway" org.opencontainers.image.licenses="Apache-2.0"
ENV PATH=/opt/quire/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
COPY --from=build /opt/quire /opt/quire
USER 10001:10001
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 CMD ["quire", "health", "http://localhost:8000"]
ENV QUIRE_HOST=0.0.0.0 QUIRE_METRICS_HOST=0.0.0.0 QUIRE_LOG_FORMAT=json
ENTRYPOINT ["quire", "gateway"]
