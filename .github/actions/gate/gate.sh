#!/usr/bin/env bash
# What is known of MODEL in RESULTS on STACK, as this step's end and as the output `evidence`.
set -euo pipefail

case "$WITHOUT_EVIDENCE" in
fail | pass) ;;
*)
	echo "without-evidence is '$WITHOUT_EVIDENCE': write fail or pass" >&2
	exit 2
	;;
esac

# A pattern would print a table, which ends with 0 whatever stands in it.
case "$MODEL" in
"" | *[*?[]*)
	echo "model is '$MODEL': write one model id" >&2
	exit 2
	;;
esac

root="$GITHUB_ACTION_PATH/../../.."
venv="$RUNNER_TEMP/qualify-gate"
if [[ ! -x "$venv/bin/qualify" ]]; then
	python3 -m venv --clear "$venv"
	"$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
		--constraint "$root/constraints.txt" "$root"
fi

code=0
"$venv/bin/qualify" show --results "$RESULTS" --stack "$STACK" -- "$MODEL" || code=$?
# README.md, Exit codes.
case "$code" in
0) evidence=PASS ;;
11) evidence=FAIL ;;
12) evidence=none ;;
*) evidence= ;;
esac
echo "evidence=$evidence" >>"$GITHUB_OUTPUT"
if [[ "$evidence" == none && "$WITHOUT_EVIDENCE" == pass ]]; then
	exit 0
fi
exit "$code"
