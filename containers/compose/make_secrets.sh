#!/usr/bin/env bash
# Makes the secrets that compose.yaml reads, as files in containers/compose/secrets; those that are there stay.
#
#   containers/compose/make_secrets.sh [FOLDER]
set -euo pipefail
umask 077
folder=${1:-$(cd "$(dirname "$0")" && pwd)/secrets}
mkdir -p "$folder"

make() {  # make NAME PREFIX
  if [ -e "$folder/$1" ]; then echo "$folder/$1 stays as it is."; return; fi
  printf '%s%s\n' "$2" "$(od -An -N24 -tx1 /dev/urandom | tr -d ' \n')" >"$folder/$1"
  echo "$folder/$1 made."
}
make postgres_password ''
make prefect_login 'team:'
make mlflow_password ''
make mlflow_flask_key ''
# Compose mounts them as they are: the user of the containers must be able to read them.
if [ "$(id -u)" -eq 0 ]; then chown -R 1000:1000 "$folder"; fi
