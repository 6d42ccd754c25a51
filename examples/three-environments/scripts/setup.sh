#!/bin/sh
# Creates the environments and access keys, once, with the root key in CONCORD_API_KEY: setup.sh PERSON PERSON…
# The persons approve changes of prod: at least two, because nobody approves a change of their own.
set -eu
for person; do
    key=$(concord key create --name "$person" --person "$person" --grant 'read:*' --grant 'write,define,approve:prod.*' \
        -o 'jsonpath={.api_key}')
    echo "for $person: $key"
done
concord env set dev
concord env set staging
# Nobody changes prod alone, and no machine does.
concord env set prod --direct refuse --approvals 1
plan=$(concord key create --name ci-plan --grant 'read:dev.*,staging.*,prod.*' -o 'jsonpath={.api_key}')
apply=$(concord key create --name ci-apply --grant 'read,write,define:dev.*,staging.*' --grant 'read,propose:prod.*' \
    -o 'jsonpath={.api_key}')
echo "for CONCORD_PLAN_KEY, a secret of the repository: $plan"
echo "for CONCORD_APPLY_KEY, a secret of the repository: $apply"
