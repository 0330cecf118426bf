#!/usr/bin/env bash
# Writes constraints.txt: what pip resolves today for the package with all extras, versions only.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/find_python.sh

python=$(find_python)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

echo "==> resolving all dependencies in a fresh environment"
"$python" -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -qq --disable-pip-version-check '.[tf,test]'
{
  echo "# Versions the tests run with. Written by make lock; do not edit."
  "$folder/venv/bin/python" -m pip freeze --exclude tiresias-mesh
} >"$folder/constraints.txt"
cp "$folder/constraints.txt" constraints.txt
echo "==> constraints.txt: $(grep -c == constraints.txt) packages"
