# The service as a small image that needs no shell and no root:
#   docker build -t rlaas .
#   docker run --rm -p 50051:50051 -p 8080:8080 rlaas

FROM docker.io/library/rust:1.95-slim-bookworm AS build
WORKDIR /build

# Dependencies first, with an empty program: this layer changes only with them. Benchmarks and examples
# stay outside, and cargo would miss them.
COPY Cargo.toml Cargo.lock ./
COPY crates/admin/Cargo.toml crates/admin/Cargo.toml
COPY crates/auth/Cargo.toml crates/auth/Cargo.toml
COPY crates/cli/Cargo.toml crates/cli/Cargo.toml
COPY crates/client/Cargo.toml crates/client/Cargo.toml
COPY crates/console/Cargo.toml crates/console/Cargo.toml
COPY crates/core/Cargo.toml crates/core/Cargo.toml
COPY crates/limiter/Cargo.toml crates/limiter/Cargo.toml
COPY crates/projects/Cargo.toml crates/projects/Cargo.toml
COPY crates/proto/Cargo.toml crates/proto/Cargo.toml
COPY crates/simulation/Cargo.toml crates/simulation/Cargo.toml
COPY crates/telemetry/Cargo.toml crates/telemetry/Cargo.toml
COPY crates/testkit/Cargo.toml crates/testkit/Cargo.toml
RUN sed -i '/^\[\[\(bench\|example\)\]\]/,/^$/d' Cargo.toml crates/*/Cargo.toml \
 && mkdir src && echo 'fn main() {}' > src/main.rs && touch src/lib.rs \
 && for crate in crates/*; do mkdir $crate/src && touch $crate/src/lib.rs; done \
 && cp src/main.rs crates/proto/build.rs \
 && cargo build --profile dist --locked \
 && rm -r src crates

COPY build.rs ./
COPY proto proto
COPY lua lua
COPY crates crates
COPY src src
# cargo goes by time: these must be newer than the empty program.
RUN touch build.rs src/main.rs src/lib.rs crates/*/src/lib.rs && cargo build --profile dist --locked
# The command of the Deployment of Envoy Gateway.
RUN mkdir bin && ln -s /usr/local/bin/rlaas bin/ratelimit

FROM gcr.io/distroless/cc-debian12:nonroot
COPY --from=build /build/target/dist/rlaas /usr/local/bin/rlaas
COPY --from=build /build/bin /bin
COPY config/container.yaml /etc/rlaas/container.yaml
# To be mounted over: what it says wins over container.yaml.
COPY config/empty.yaml /etc/rlaas/rlaas.yaml
COPY LICENSE-MIT LICENSE-APACHE THIRD_PARTY_NOTICES.txt /usr/share/doc/rlaas/
EXPOSE 50051 8080
# By its number: Kubernetes can't tell from a name that it is not root.
USER 65532:65532
HEALTHCHECK --interval=10s --timeout=3s --start-period=2s CMD ["rlaas", "health"]
ENTRYPOINT ["/usr/local/bin/rlaas"]
CMD ["serve", "--config", "/etc/rlaas/container.yaml", "--config", "/etc/rlaas/rlaas.yaml"]
