# gpucheck in a container.
#
#   docker build -t gpucheck .                                        a head node: reads results, looks at GPUs, no torch
#   docker build -t gpucheck --build-arg BASE=pytorch/pytorch:TAG .   a node: the torch of that image stays as it is
#   docker run --rm --gpus all gpucheck smoke --require cuda

# Any image with Python 3.10 or newer; one that has torch keeps it.
ARG BASE=python:3.12-slim

FROM python:3.12-slim AS build
WORKDIR /build
COPY constraints.txt LICENSE ./
COPY scripts scripts
COPY src src
RUN python3 scripts/pyz /file/gpucheck

FROM ${BASE}
# One file, which needs no pip: nothing in the image changes. It unpacks itself here, once.
COPY --from=build /file/gpucheck /usr/local/bin/
RUN gpucheck schema > /dev/null
# The libraries that NVIDIA's container runtime brings in: CUDA's, and NVML's.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
ENTRYPOINT ["gpucheck"]
CMD ["devices"]
