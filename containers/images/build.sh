#!/usr/bin/env bash
# Builds the stage image from a temporary build context.
#
#   containers/images/build.sh [--tag rlhf-stage:gpu] [--base IMAGE] [--wheels DIR] [--ca-bundle FILE] [--with PACKAGE]…
#     [--without vllm] [--elsewhere]
#
#   --tag        name of the image; the project uses rlhf-stage:gpu and rlhf-stage:cpu
#   --base       image to build on; default: the one in the Dockerfile (official PyTorch with CUDA)
#   --wheels     folder of wheels that pip may take instead of downloading (default: $PIP_FIND_LINKS, if that is a folder)
#   --ca-bundle  certificates that pip trusts, for hosts behind an inspecting proxy (default: $PIP_CERT, if set)
#   --elsewhere  the image is for another machine, so its CUDA is not held against this machine's driver
#   --with       a package beyond those of every stage, as pip takes it
#   --without    leave out vLLM, which is in the image where the base's name says a CUDA that its build fits
#
# PYTHON names a Python that has pydantic (default: python3); with it the image is labelled with its sources' digest.
# PIP_INDEX_URL, PIP_EXTRA_INDEX_URL and PIP_DEFAULT_TIMEOUT of the caller are passed on, so are the proxy variables.
# Neither wheels nor certificates stay in the image.
set -euo pipefail

tag=rlhf-stage:gpu
base=
wheels=
ca_bundle=${PIP_CERT:-}
extras=()
elsewhere=
takes_vllm=yes
if [ -d "${PIP_FIND_LINKS:-}" ]; then wheels=$PIP_FIND_LINKS; fi

while [ $# -gt 0 ]; do
  case "$1" in
    --tag) tag=$2; shift 2 ;;
    --base) base=$2; shift 2 ;;
    --wheels) wheels=$2; shift 2 ;;
    --ca-bundle) ca_bundle=$2; shift 2 ;;
    --with) extras+=("$2"); shift 2 ;;
    --without)
      if [ "$2" != vllm ]; then echo "build.sh: only vllm can be left out, not $2." >&2; exit 2; fi
      takes_vllm=; shift 2 ;;
    --elsewhere) elsewhere=yes; shift ;;
    *) echo "build.sh: unknown option $1. Known: --tag, --base, --wheels, --ca-bundle, --with, --without, --elsewhere." >&2; exit 2 ;;
  esac
done

project=$(cd "$(dirname "$0")/../.." && pwd)
if ! docker version --format '{{.Server.Version}}' >/dev/null 2>&1; then
  echo "build.sh: no Docker daemon answers. Start it (for example: systemctl start docker), or add yourself to the" \
    "docker group, then run this again." >&2
  exit 1
fi
if [ -n "$wheels" ] && [ ! -d "$wheels" ]; then
  echo "build.sh: --wheels $wheels is not a folder." >&2; exit 2
fi
if [ -n "$ca_bundle" ] && [ ! -r "$ca_bundle" ]; then
  echo "build.sh: --ca-bundle $ca_bundle cannot be read." >&2; exit 2
fi

asked=${base:-$(sed -n 's/^ARG BASE_IMAGE=//p' "$project/containers/images/Dockerfile")}
if [ -n "$takes_vllm" ] && [[ " ${extras[*]}" != *" vllm"* ]]; then
  usual=$(cd "$project" && "${PYTHON:-python3}" -m containers.launch.gpus.drivers --packages "$asked") || exit 1
  if [ -n "$usual" ]; then extras+=("$usual"); fi
fi
case " ${extras[*]}" in
  *" vllm"*) echo "build.sh: with vLLM, for rollout_engine: vllm." ;;
  *) echo "build.sh: without vLLM: left out, or the name of $asked says no CUDA that its build fits (--with vllm==… adds it)." ;;
esac

# Before gigabytes are downloaded: does this machine's driver run the CUDA of the base?
if [ -z "$elsewhere" ]; then
  (cd "$project" && "${PYTHON:-python3}" -m containers.launch.gpus.drivers "$asked" "${extras[@]}") || {
    echo "build.sh: nothing was downloaded. --elsewhere builds the image for another machine." >&2; exit 1
  }
fi

context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT

mkdir -p "$context/wheels" "$context/certificates" "$context/rlhf/containers"
cp "$project/pyproject.toml" "$project/containers/images/stage_requirements.py" \
  "$project/containers/images/Dockerfile" "$context/"
cp "$project"/containers/*.py "$context/rlhf/containers/"
for folder in "$project"/containers/*/; do
  case "$(basename "$folder")" in
    launch | images | compose | __pycache__) ;;  # what starts containers is no part of them
    *) cp -r "$folder" "$context/rlhf/containers/" ;;
  esac
done
find "$context/rlhf" -name __pycache__ -type d -prune -exec rm -rf {} +
chmod -R a+rX,go-w "$context/rlhf"
# COPY compares times as well as bytes in some builders; a fixed time keeps the layer cache of unchanged sources.
find "$context" -exec touch -h -d '2000-01-01 00:00:00 UTC' {} +
if [ -n "$wheels" ]; then cp -p "$wheels"/*.whl "$context/wheels/" 2>/dev/null || true; fi
if [ -n "$ca_bundle" ]; then cp -pL "$ca_bundle" "$context/certificates/ca-bundle.pem"; fi

arguments=()
if [ -n "$base" ]; then arguments+=(--build-arg "BASE_IMAGE=$base"); fi
printf '%s\n' "${extras[@]}" > "$context/extras.txt"
for name in PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_DEFAULT_TIMEOUT \
  HTTP_PROXY HTTPS_PROXY NO_PROXY http_proxy https_proxy no_proxy; do
  if [ -n "${!name:-}" ]; then arguments+=(--build-arg "$name"); fi
done

# The digest of the sources inside, so that `rlhf check` can say that the image is older than the orchestrator.
digest=$(cd "$context/rlhf" && "${PYTHON:-python3}" -c 'from containers.contracts.programs import Sources
print(Sources().digest)' 2>/dev/null) || digest=unknown
labels=(--label "rlhf.stages_digest=$digest" --label "rlhf.extras=${extras[*]}")
docker build --tag "$tag" "${labels[@]}" "${arguments[@]}" "$context"
# Only the finished image knows its torch, so a second build, from the cache, adds the label. torch is not imported.
cuda=$(docker run --rm --network none "$tag" python -c 'import importlib.util, pathlib, runpy
torch = pathlib.Path(importlib.util.find_spec("torch").origin).parent
print(runpy.run_path(str(torch / "version.py"))["cuda"] or "none")')
docker build --quiet --tag "$tag" "${labels[@]}" --label "rlhf.cuda=$cuda" "${arguments[@]}" "$context" >/dev/null
docker image inspect --format 'Built {{index .RepoTags 0}}: {{.Id}}, {{.Size}} bytes.' "$tag"
