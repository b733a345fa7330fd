# A training image: PyTorch, Rankwatch, your code. The build's context is your code's folder, not this repository:
#
#   docker build -f docker/Dockerfile --target wheel -t rankwatch-wheel .
#   docker build -f examples/kubernetes/training.Dockerfile -t rankwatch-training YOUR/CODE
#
# training.yaml starts train_gpt.py: for a first run, examples/train_gpt.py is the code.
ARG BASE=pytorch/pytorch:2.9.1-cuda12.8-cudnn9-runtime
FROM ${BASE}
# [gpu] is what ranks with a GPU use (NVML, CUPTI). The monitor is an image of its own: nothing of it is needed here.
RUN --mount=from=rankwatch-wheel,source=/wheels,target=/wheels \
    pip install --no-cache-dir "$(ls /wheels/rankwatch-*.whl)[gpu]"
# Pods run as user 1000, which needs a name and a home: torch keeps compiled kernels under the one or the other.
RUN getent passwd 1000 || useradd --uid 1000 --create-home rankwatch
COPY --chown=1000:1000 . /workspace
USER 1000
WORKDIR /workspace
