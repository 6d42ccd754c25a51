#!/bin/sh
# Shows what the files would change in an environment, and saves the plan: plan.sh ENVIRONMENT PLAN
set -eu
environment=$1 plan=$2
code=0
concord diff --env "$environment" -f definitions -f "$environment" --prune --save "$plan" || code=$?
# 1 says that there is a difference. Everything else is a failure.
[ "$code" -le 1 ] || exit "$code"
