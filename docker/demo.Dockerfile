# The training job of the demo: two ranks on CPU. Build from the root: docker build -f docker/demo.Dockerfile -t rankwatch-demo .
# Base images are named by tag, as in docker/Dockerfile.

FROM python:3.11-slim-bookworm AS wheel
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY locks/ locks/
COPY telemetry/ telemetry/
COPY monitor/ monitor/
COPY launcher/ launcher/
COPY scripts/build_page.py scripts/build_manual.py scripts/
COPY examples/train_gpt.py examples/
RUN pip install --no-cache-dir --require-hashes --requirement locks/build.txt
# No monitor runs in this image, so its wheel needs no page and no manual.
ENV RANKWATCH_BUILD_PAGE=0 RANKWATCH_BUILD_MANUAL=0
RUN pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels .

FROM python:3.11-slim-bookworm
LABEL org.opencontainers.image.title="Rankwatch demo job" org.opencontainers.image.licenses="Apache-2.0"
COPY constraints.txt /build/constraints.txt
COPY locks/ /build/locks/
COPY --from=wheel /wheels/ /build/wheels/
# pip's own index has torch for Linux with gigabytes of CUDA; name the index of the CPU builds to spare them (the address
# stands in torch's own instructions): TORCH_INDEX_URL=... docker build --secret id=torch-index-url,env=TORCH_INDEX_URL ...
# A secret and no argument: arguments stay in the image's history, and the address may contain a password.
# Each index has other builds of torch, so that it and its GPU packages are pinned by version and not by hash.
RUN --mount=type=secret,id=torch-index-url \
    index="$(cat /run/secrets/torch-index-url 2>/dev/null || true)" \
    && pip install --no-cache-dir --require-hashes --requirement /build/locks/demo.txt \
    && torch="$(grep '^torch==' /build/constraints.txt)" \
    && pip install --no-cache-dir --no-deps ${index:+--index-url "${index}"} "${torch}" \
    && wheel="$(ls /build/wheels/rankwatch-*.whl)" \
    && pip install --no-cache-dir --constraint /build/constraints.txt "${wheel}[torch]"
RUN useradd --uid 1000 --create-home --shell /usr/sbin/nologin rankwatch \
    && install --directory --owner=rankwatch --group=rankwatch /runs
COPY --chmod=755 docker/demo.sh /usr/local/bin/rankwatch-demo
COPY examples/train_gpt.py /opt/examples/train_gpt.py
USER rankwatch
WORKDIR /runs
VOLUME /runs
ENTRYPOINT ["rankwatch-demo"]
