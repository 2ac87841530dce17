#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Runs the unit tests that were built in DIRECTORY, two at a time; says all of one that failed.
#	tests/unit/run.sh [DIRECTORY [NAME...]]
set -u
cd "$(dirname "$0")/../.." || exit 1
built=${1:-build/tests/unit}
[ $# -gt 0 ] && shift
names=${*:-$(for source in tests/unit/test_*.c; do basename "$source" .c; done)}
python=.venv/bin/python
[ -e .venv/installed ] && [ -z "${NO_PROPERTIES-}" ] && names="properties $names"
export CMOCKA_MESSAGE_OUTPUT=TAP built python
# shellcheck disable=SC2016,SC2086 # expanded by the shell that xargs starts; a list of words
printf '%s\n' $names | xargs -P "$(nproc)" -I {} sh -c '
	log=$built/{}.log
	if [ {} = properties ]; then
		"$python" tests/unit/properties.py "$built/ops" > "$log" 2>&1
	else
		"$built/{}" > "$log" 2>&1
	fi
	status=$?
	if [ $status = 0 ]; then
		echo "ok {}: $(grep -c "^ok" "$log") tests"
		grep "^# expected failure" "$log"
		exit 0
	fi
	cat "$log"
	echo "not ok {}: status $status"
	exit 1'
