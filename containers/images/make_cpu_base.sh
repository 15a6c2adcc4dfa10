#!/usr/bin/env bash
# Makes a small Debian image with Python and nothing else, for CPU builds of the stage image where no registry is at
# hand. Needs root, debootstrap and a Docker daemon; takes about a minute.
#
#   containers/images/make_cpu_base.sh [--tag rlhf-base:cpu] [--suite bookworm] [--mirror URL]
set -euo pipefail

tag=rlhf-base:cpu
suite=bookworm
mirror=()

while [ $# -gt 0 ]; do
  case "$1" in
    --tag) tag=$2; shift 2 ;;
    --suite) suite=$2; shift 2 ;;
    --mirror) mirror=("$2"); shift 2 ;;
    *) echo "make_cpu_base.sh: unknown option $1. Known: --tag NAME, --suite NAME, --mirror URL." >&2; exit 2 ;;
  esac
done

for program in debootstrap docker tar; do
  command -v "$program" >/dev/null || { echo "make_cpu_base.sh: $program is not installed." >&2; exit 1; }
done
if [ "$(id -u)" -ne 0 ]; then
  echo "make_cpu_base.sh: debootstrap needs root (it makes device files). Run it with sudo." >&2
  exit 1
fi

rootfs=$(mktemp -d)
trap 'rm -rf "$rootfs"' EXIT

debootstrap --variant=minbase --include=python3,python3-venv,python3-pip,ca-certificates \
  "$suite" "$rootfs" "${mirror[@]}"
rm -rf "$rootfs"/var/cache/apt/archives/*.deb "$rootfs"/var/lib/apt/lists/*
ln -sf python3 "$rootfs/usr/bin/python"

tar -C "$rootfs" -c . | docker import --change 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' \
  - "$tag"
docker image inspect --format '{{.Id}} {{.Size}}' "$tag"
