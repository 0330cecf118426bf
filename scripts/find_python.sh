# Sourced by the other scripts. find_python prints a Python that can make the environment:
# 3.11 to 3.13 (TensorFlow has no build for others) with the module venv. PYTHON overrides.

find_python() {
  local candidate found=""
  for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
    command -v "$candidate" >/dev/null || continue
    found="$found $candidate"
    "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null ||
      continue
    if "$candidate" -c 'import ensurepip, venv' 2>/dev/null; then
      echo "$candidate"
      return 0
    fi
    echo "error: $candidate has no module venv: install it (Debian, Ubuntu: python3-venv)" >&2
    return 1
  done
  echo "error: no Python 3.11, 3.12 or 3.13 (looked at:${found:- nothing found})." >&2
  echo "Install one, or name it: make PYTHON=/path/to/python3.11" >&2
  return 1
}
