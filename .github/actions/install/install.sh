#!/usr/bin/env bash
# `qualify` of this checkout on PATH. EXTRAS: parts of the package; PACKAGES: requirements beside.
set -euo pipefail

venv="$RUNNER_TEMP/qualify"
python3 -m venv --clear --system-site-packages "$venv"

# Versions as tested, but those that belong to the stack: the plan names them, or the image has them.
constraints="$RUNNER_TEMP/constraints.txt"
grep -vE '^(torch|transformers|tokenizers|huggingface_hub)==' constraints.txt >"$constraints"

read -ra packages <<<"$PACKAGES"
options=()
# Only stacks of the target cpu name torch here; PyPI's may be the CUDA build, gigabytes larger.
if [[ " $PACKAGES" == *" torch=="* ]]; then
	options+=(--extra-index-url https://download.pytorch.org/whl/cpu)
fi

# Editable, so that records can name the commit of the code that made them.
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check "${options[@]}" \
	--constraint "$constraints" --editable ".[$EXTRAS]" "${packages[@]}"
echo "$venv/bin" >>"$GITHUB_PATH"
