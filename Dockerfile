# syntax=docker/dockerfile:1
# The images of docker-compose.yml and of envoy/kubernetes, from source: `hub`, `engine` (fake engines and the load generator), `envoy` with the module.

FROM rust:1.95.0-slim-bookworm AS source
# The image's own toolchain, not another one with components that only development needs.
ENV RUSTUP_TOOLCHAIN=1.95.0
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends make python3 \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /warmroute
COPY . .

FROM source AS module
RUN --mount=type=cache,sharing=locked,target=/usr/local/cargo/registry \
    --mount=type=cache,id=warmroute-module,target=/warmroute/target \
    make wasm \
    && cp target/warmroute.wasm /warmroute.wasm

FROM source AS native
RUN --mount=type=cache,sharing=locked,target=/usr/local/cargo/registry \
    --mount=type=cache,id=warmroute-native,target=/warmroute/target \
    cargo build --release --features kubernetes --bins \
    && mkdir /programs \
    && cp target/release/warmroute-hub target/release/fake-engine target/release/loadgen /programs/ \
    && strip /programs/*

# A C library and nothing else: no shell, no package manager.
FROM gcr.io/distroless/cc-debian12:nonroot AS hub
COPY --from=native /programs/warmroute-hub /usr/local/bin/
COPY demo/models /models
USER 65532:65532
EXPOSE 9090 8081
ENTRYPOINT ["/usr/local/bin/warmroute-hub"]
CMD ["--config", "/etc/warmroute/hub.yaml"]

FROM gcr.io/distroless/cc-debian12:nonroot AS engine
COPY --from=native /programs/fake-engine /programs/loadgen /usr/local/bin/
COPY demo/models /models
USER 65532:65532
EXPOSE 8000 5557 5558
ENTRYPOINT ["/usr/local/bin/fake-engine"]

FROM envoyproxy/envoy:v1.40.0 AS envoy
COPY --from=module /warmroute.wasm /etc/envoy/warmroute.wasm
USER 65532:65532
EXPOSE 10000 9902
# Past the image's own entry point, which begins as root.
ENTRYPOINT ["/usr/local/bin/envoy"]
CMD ["-c", "/etc/envoy/envoy.yaml"]
