#!/usr/bin/env bash
# Builds the image of the servers and the worker (compose.yaml) from a temporary build context.
#
#   containers/compose/build.sh [--tag rlhf-flows:local] [--base IMAGE] [--ca-bundle FILE]
#
#   --base       image with Python 3.11 or newer, pip and venv (default: the one in the Dockerfile)
#   --ca-bundle  certificates that pip trusts, for hosts behind an inspecting proxy (default: $PIP_CERT, if set)
#
# PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, PIP_DEFAULT_TIMEOUT and the proxy variables of the caller are passed on.
set -euo pipefail

tag=rlhf-flows:local
base=
ca_bundle=${PIP_CERT:-}
while [ $# -gt 0 ]; do
  case "$1" in
    --tag) tag=$2; shift 2 ;;
    --base) base=$2; shift 2 ;;
    --ca-bundle) ca_bundle=$2; shift 2 ;;
    *) echo "build.sh: unknown option $1. Known: --tag, --base, --ca-bundle." >&2; exit 2 ;;
  esac
done

project=$(cd "$(dirname "$0")/../.." && pwd)
context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT
cp -r "$project"/{pyproject.toml,README.md,LICENSE,flows,tasks,containers} "$project/containers/compose/with_secrets.sh" "$context/"
cp "$project/containers/compose/Dockerfile" "$context/"
mkdir -p "$context/certificates"
find "$context" -name __pycache__ -type d -prune -exec rm -rf {} +
# Secrets that lie beside compose.yaml must not come into an image.
rm -rf "$context/containers/compose/secrets" "$context/containers/compose/.env"
chmod -R a+rX,go-w "$context"
chmod 755 "$context/with_secrets.sh"
if [ -n "$ca_bundle" ]; then cp -L "$ca_bundle" "$context/certificates/ca-bundle.pem"; fi

arguments=()
if [ -n "$base" ]; then arguments+=(--build-arg "BASE_IMAGE=$base"); fi
for name in PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_DEFAULT_TIMEOUT \
  HTTP_PROXY HTTPS_PROXY NO_PROXY http_proxy https_proxy no_proxy; do
  if [ -n "${!name:-}" ]; then arguments+=(--build-arg "$name"); fi
done
docker build --tag "$tag" "${arguments[@]}" "$context"
