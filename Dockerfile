# syntax=docker/dockerfile:1
# One Dockerfile, one target an image:
#   docker build --target manager  -t sluice.dev/manager:dev .
#   docker build --target batcher  -t sluice.dev/batcher:dev .
#   docker build --target gateway  -t sluice.dev/gateway:dev .
#   docker build --target gpuworker -t sluice.dev/gpuworker:dev .
# Every image is one static binary on an empty base, run as an unprivileged user.
FROM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN --mount=type=cache,target=/go/pkg/mod go mod download
COPY api api
COPY cmd cmd
COPY internal internal
COPY hack/loadgen hack/loadgen
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    CGO_ENABLED=0 go build -trimpath -ldflags='-s -w' -o /out/ ./cmd/... ./hack/loadgen

FROM scratch AS base
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
USER 65532:65532

FROM base AS manager
COPY --from=build /out/manager /manager
ENTRYPOINT ["/manager"]

FROM base AS batcher
COPY --from=build /out/batcher /batcher
ENTRYPOINT ["/batcher"]

FROM base AS gateway
COPY --from=build /out/gateway /gateway
ENTRYPOINT ["/gateway"]

FROM base AS gpuworker
COPY --from=build /out/gpuworker /gpuworker
ENTRYPOINT ["/gpuworker"]

FROM base AS loadgen
COPY --from=build /out/loadgen /loadgen
ENTRYPOINT ["/loadgen"]
