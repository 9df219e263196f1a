# syntax=docker/dockerfile:1
# Two images of one file:
#   docker build --target cpu -t rewardlab:cpu .      the endpoint, benchmarks and data, with a CPU build of torch
#   docker build --target cuda -t rewardlab:cuda .    training and serving on NVIDIA GPUs, with vLLM, DeepSpeed and bitsandbytes
# Build arguments: EXTRAS (of pyproject.toml), TORCH_INDEX (cpu only), PYTHON_IMAGE, REVISION (the commit, for a label).
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS wheel
ENV PIP_CACHE_DIR=/var/cache/pip PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
COPY pyproject.toml setup.py MANIFEST.in README.md LICENSE ./
COPY configs configs
COPY data_recipes data_recipes
COPY rewardlab rewardlab
RUN --mount=type=cache,target=/var/cache/pip,sharing=locked pip wheel --no-deps --wheel-dir /dist .

FROM ${PYTHON_IMAGE} AS base
ARG REVISION=unknown
LABEL org.opencontainers.image.title="rewardlab" \
      org.opencontainers.image.description="Train, benchmark and serve generative multimodal judges" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.revision="${REVISION}"
# The user's home holds every cache (Hugging Face, Triton, matplotlib): mount a volume there to keep them.
RUN useradd --uid 10001 --user-group --create-home --home-dir /var/lib/rewardlab rewardlab \
    && install --directory --owner rewardlab --group rewardlab /var/lib/rewardlab/.cache /workspace
ENV PIP_CACHE_DIR=/var/cache/pip PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1 PATH=/opt/rewardlab/bin:${PATH}
RUN python -m venv /opt/rewardlab
WORKDIR /workspace
COPY constraints.txt /opt/rewardlab/constraints.txt
# `accelerate launch` takes a path, not the name of a config.
COPY configs configs
EXPOSE 8000
# Only `rewardlab serve` listens: any other command counts as healthy while it runs.
HEALTHCHECK --interval=15s --timeout=5s --start-period=10m --retries=4 \
    CMD ["python", "-c", "import pathlib, urllib.request as web; b'serve' not in pathlib.Path('/proc/1/cmdline').read_bytes().split(b'\\0') or web.urlopen('http://127.0.0.1:8000/health', timeout=4)"]
ENTRYPOINT ["rewardlab"]
CMD ["--help"]

FROM base AS cuda
ARG EXTRAS=train,serve,deepspeed,qlora,vllm
# Triton compiles its launchers with the system's compiler.
RUN apt-get update && apt-get install --yes --no-install-recommends gcc g++ libc6-dev && rm -rf /var/lib/apt/lists/*
# The vLLM that `make vllm` tests.
RUN echo 'vllm==0.30.0' >> /opt/rewardlab/constraints.txt
RUN --mount=type=cache,target=/var/cache/pip,sharing=locked \
    pip install --constraint /opt/rewardlab/constraints.txt torch torchvision
RUN --mount=type=cache,target=/var/cache/pip,sharing=locked --mount=type=bind,from=wheel,source=/dist,target=/dist \
    pip install --constraint /opt/rewardlab/constraints.txt "$(echo /dist/rewardlab-*.whl)[${EXTRAS}]"
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 10001:10001

FROM base AS cpu
ARG EXTRAS=hf,serve
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
# Of two builds of a version pip takes the one with a local label: +cpu.
RUN --mount=type=cache,target=/var/cache/pip,sharing=locked \
    pip install --constraint /opt/rewardlab/constraints.txt --extra-index-url "${TORCH_INDEX}" torch torchvision
RUN --mount=type=cache,target=/var/cache/pip,sharing=locked --mount=type=bind,from=wheel,source=/dist,target=/dist \
    pip install --constraint /opt/rewardlab/constraints.txt "$(echo /dist/rewardlab-*.whl)[${EXTRAS}]"
USER 10001:10001
