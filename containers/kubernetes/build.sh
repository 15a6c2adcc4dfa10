#!/usr/bin/env bash
# Builds the image of the pods of `rlhf pod-template` from a stage image, in a temporary build context.
#
#   containers/kubernetes/build.sh [--tag rlhf-pod:local] [--base rlhf-stage:gpu] [--ca-bundle FILE]
#
#   --base       stage image of these sources, built by `containers/images/build.sh --without vllm`, as vLLM and
#                Prefect need different releases of fastapi
#   --ca-bundle  certificates that pip trusts, for hosts behind an inspecting proxy (default: $PIP_CERT, if set)
#
# PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, PIP_DEFAULT_TIMEOUT and the proxy variables of the caller are passed on.
set -euo pipefail

tag=rlhf-pod:local
base=rlhf-stage:gpu
ca_bundle=${PIP_CERT:-}
while [ $# -gt 0 ]; do
  case "$1" in
    --tag) tag=$2; shift 2 ;;
    --base) base=$2; shift 2 ;;
    --ca-bundle) ca_bundle=$2; shift 2 ;;
    *) echo "build.sh: unknown option $1. Known: --tag, --base, --ca-bundle." >&2; exit 2 ;;
  esac
done

if ! labels=$(docker image inspect --format '{{json .Config.Labels}}' "$base" 2>/dev/null); then
  echo "build.sh: there is no image $base on this machine. Build the stage image first: make image (docs/hardware.md)." >&2
  exit 1
fi
case "$labels" in
  *vllm*)
    echo "build.sh: $base has vLLM, which needs another fastapi than Prefect. Build a stage image without it:" >&2
    echo "  containers/images/build.sh --tag rlhf-stage:pod --without vllm …, then --base rlhf-stage:pod here." >&2
    exit 1 ;;
esac

project=$(cd "$(dirname "$0")/../.." && pwd)
context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT
cp -r "$project"/{pyproject.toml,README.md,LICENSE,flows,tasks,containers} "$context/"
cp "$project/containers/kubernetes/Dockerfile" "$context/"
mkdir -p "$context/certificates"
find "$context" -name __pycache__ -type d -prune -exec rm -rf {} +
# Secrets that lie beside compose.yaml must not come into an image.
rm -rf "$context/containers/compose/secrets" "$context/containers/compose/.env"
chmod -R a+rX,go-w "$context"
if [ -n "$ca_bundle" ]; then cp -L "$ca_bundle" "$context/certificates/ca-bundle.pem"; fi

arguments=(--build-arg "BASE_IMAGE=$base")
for name in PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_DEFAULT_TIMEOUT \
  HTTP_PROXY HTTPS_PROXY NO_PROXY http_proxy https_proxy no_proxy; do
  if [ -n "${!name:-}" ]; then arguments+=(--build-arg "$name"); fi
done
docker build --tag "$tag" "${arguments[@]}" "$context"
