#!/usr/bin/env bash
# Makes .venv complete: creates it where it is missing or broken, installs what constraints.txt pins.
# A stamp in .venv, written last, tells that nothing has changed since; then this ends at once.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv=.venv
stamp=$venv/.complete
wanted="$PWD $(cat pyproject.toml constraints.txt | cksum)"

if [[ -x $venv/bin/tiresias && -f $stamp && $(<"$stamp") == "$wanted" ]]; then
  exit 0
fi

source scripts/find_python.sh

belongs_here() {
  "$venv/bin/python" -c 'import pip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null &&
    head -n 1 "$venv/bin/pip" | grep -qF "$PWD/$venv/"
}

rm -f "$stamp"
if [[ -e $venv ]] && ! belongs_here; then
  echo "==> $venv is incomplete or was made elsewhere: making it anew"
  rm -rf "$venv"
fi
if [[ ! -e $venv ]]; then
  python=$(find_python)
  echo "==> creating $venv with $("$python" --version)"
  "$python" -m venv "$venv"
fi

echo "==> installing tiresias and its dependencies into $venv (TensorFlow is large: minutes, once)"
if ! "$venv/bin/python" -m pip install -qq --disable-pip-version-check \
  -c constraints.txt -e '.[tf,test]'; then
  echo "error: the installation failed; see above, then run the same command again" >&2
  exit 1
fi
printf '%s\n' "$wanted" >"$stamp"
echo "==> ready"
