# docker build -f deploy/docker/worker.Dockerfile -t quire-worker .
# For GPUs: --build-arg TORCH_INDEX=https://pypi.org/simple
ARG PYTHON=3.12-slim-bookworm

FROM python:${PYTHON} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_NO_COMPILE=1
# torch comes without CUDA from here, which is a tenth of its size.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
WORKDIR /src
COPY . .
RUN python -m venv /opt/quire && /opt/quire/bin/pip install --extra-index-url ${TORCH_INDEX} -c constraints.txt '.[worker]'

FROM python:${PYTHON}
LABEL org.opencontainers.image.title="quire-worker" org.opencontainers.image.licenses="Apache-2.0"
ENV PATH=/opt/quire/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HF_HOME=/models
COPY --from=build /opt/quire /opt/quire
# What is downloaded from the hub; mount a volume to keep it.
RUN install -d -o 10001 -g 10001 /models
VOLUME /models
USER 10001:10001
EXPOSE 50071
HEALTHCHECK --interval=10s --timeout=5s --start-period=300s --retries=3 CMD ["quire", "health", "localhost:50071"]
ENV QUIRE_LISTEN=0.0.0.0:50071 QUIRE_LOG_FORMAT=json
ENTRYPOINT ["quire", "worker"]
