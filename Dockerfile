# gpucheck in a container.
#
#   docker build -t gpucheck .                                        a head node: reads results, looks at GPUs, no torch
#   docker build -t gpucheck --build-arg BASE=pytorch/pytorch:TAG .   a node: the torch of that image stays as it is
#   docker run --rm --gpus all gpucheck smoke --require cuda

# Any image with Python 3.10 or newer; one that has torch keeps it.
ARG BASE=python:3.12-slim

FROM python:3.12-slim AS build
WORKDIR /build
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN python3 -m pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM ${BASE}
COPY --from=build /wheels /wheels
# Without --no-deps the wheel would bring a torch of its own where the image has none. What else it needs is named here.
RUN python3 -m pip install --no-cache-dir --no-deps /wheels/gpucheck_cli-*.whl \
    && python3 -m pip install --no-cache-dir "typer>=0.26" "rich>=13.8" "nvidia-ml-py>=12.535" "psutil>=5.9" \
        "tomli>=2.0; python_version < '3.11'" "Jinja2>=3.1"
# The libraries that NVIDIA's container runtime brings in: CUDA's, and NVML's.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
ENTRYPOINT ["gpucheck"]
CMD ["devices"]
