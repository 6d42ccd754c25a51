#!/bin/sh
# Does what a plan says, or exits with 4 and changes nothing: apply.sh ENVIRONMENT PLAN TITLE
# Where changes need approval, it sends a change request instead.
set -eu
environment=$1 plan=$2
# A commit message has several lines and any characters; a title has one line of at most 255 bytes.
title=$(printf '%s\n' "$3" | head -n 1 | tr -d '[:cntrl:]' | LC_ALL=C.UTF-8 sed 's/^\(.\{60\}\).*/\1/')
title=${title:-merge}
set -- --env "$environment" -f definitions -f "$environment" --plan "$plan" --yes
if [ "$(concord env get "$environment" -o 'jsonpath={.direct}')" = refuse ]; then
    concord apply "$@" --propose="$title"
else
    concord apply "$@" --reason="$title"
fi
