#!/bin/sh
# Runs a command with secrets that lie in files: each variable NAME_FILE that names one in /run/secrets (SECRETS_FOLDER)
# becomes NAME, with the file's first line.
# So they stand neither in compose.yaml nor in what `docker inspect` shows.
set -eu

folder=${SECRETS_FOLDER:-/run/secrets}
for name in $(env | sed -n "s#^\([A-Z][A-Z0-9_]*\)_FILE=$folder/.*\$#\1#p"); do
  file=$(printenv "${name}_FILE")
  if [ ! -s "$file" ]; then
    echo "with_secrets: ${name}_FILE names $file, which is not there, is empty or cannot be read by user $(id -u)." >&2
    exit 1
  fi
  IFS= read -r value <"$file" || [ -n "$value" ]
  export "$name=$value"
  unset "${name}_FILE"
done
exec "$@"
