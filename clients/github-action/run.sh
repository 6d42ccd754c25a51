#!/usr/bin/env bash
# The step of action.yml, whose inputs are in variables INPUT_…. Needs curl and sha256sum to install a package, and gh for a
# comment; the runners of GitHub have them.
set -euo pipefail

# An input that is not set is an empty variable, which would be an empty setting.
for name in CONCORD_URL CONCORD_API_KEY CONCORD_ENVIRONMENT GH_TOKEN; do
    [[ -n ${!name:-} ]] || unset "$name"
done
wrong() { echo "::error::$*"; exit 2; }
is_set() { [[ $1 == true ]] || { [[ $1 == false || -z $1 ]] || wrong "expected true or false, not \`$1\`"; return 1; }; }

if [[ -n ${INPUT_PACKAGE_URL:-} ]]; then
    [[ -n ${INPUT_PACKAGE_SHA256:-} ]] || wrong "package-url needs package-sha256"
    place=$RUNNER_TEMP/concord-$INPUT_PACKAGE_SHA256
    if [[ ! -x $place/bin/concord ]]; then
        mkdir -p "$place"
        curl -fsSL --retry 3 -o "$place/package.tar.gz" "$INPUT_PACKAGE_URL"
        sha256sum --quiet --check - <<< "$INPUT_PACKAGE_SHA256  $place/package.tar.gz" || wrong "the package has another SHA-256"
        tar -xzf "$place/package.tar.gz" -C "$place" --strip-components 1
        rm "$place/package.tar.gz"
    fi
    PATH=$place/bin:$PATH
fi

files=()
while IFS= read -r file; do
    if [[ -n ${file//[[:space:]]/} ]]; then files+=("$file"); fi
done <<< "$INPUT_FILES"
((${#files[@]})) || wrong "files is empty"
named=(-R)
for file in "${files[@]}"; do named+=(--file "$file"); done
if [[ -n ${INPUT_SECRET_FILES:-} ]]; then named+=(--secret-files "$INPUT_SECRET_FILES"); fi

# A comment of this action, which the next run for the same files changes. With `existing`, none is added.
comment() {
    local mark number old path method=POST
    mark="<!-- concord diff ${CONCORD_ENVIRONMENT:-} $(printf '%s\n' "${files[@]}" | cksum) -->"
    number=${GITHUB_REF#refs/pull/}
    if [[ $number == "$GITHUB_REF" ]]; then
        echo "::notice::there is no pull request to comment on"
        return
    fi
    number=${number%%/*}
    path=repos/$GITHUB_REPOSITORY/issues
    # Not that of a person, who could change it afterwards.
    old=$(gh api --paginate "$path/$number/comments" \
        --jq ".[] | select(.user.type == \"Bot\" and (.body | startswith(\"$mark\"))) | .id")
    old=${old%%$'\n'*}
    if [[ -n $old ]]; then
        method=PATCH path=$path/comments/$old
    elif [[ ${2:-} == existing ]]; then
        return
    else
        path=$path/$number/comments
    fi
    { echo "$mark"; cat "$1"; } | gh api --method "$method" "$path" --silent --field body=@-
}

case $INPUT_COMMAND in
    check)
        exec concord check -o github -- "${files[@]}"
        ;;
    diff)
        if is_set "${INPUT_PRUNE:-}"; then named+=(--prune); fi
        if [[ -n ${INPUT_PLAN:-} ]]; then named+=(--save "$INPUT_PLAN"); fi
        shown=$(mktemp)
        trap 'rm -f "$shown"' EXIT
        code=0
        title="### Concord${CONCORD_ENVIRONMENT:+: $CONCORD_ENVIRONMENT}"
        {
            printf '%s\n\n' "$title"
            concord diff "${named[@]}" -o markdown
        } > "$shown" || code=$?
        # 1 says that there is a difference. Everything else is a failure.
        if ((code > 1)); then
            if is_set "${INPUT_COMMENT:-}"; then
                # The comment of before would be taken for the difference of now.
                printf '%s\n\n%s\n' "$title" "**The comparison failed**: see the log of the pipeline." > "$shown"
                comment "$shown" existing || true
            fi
            exit "$code"
        fi
        cat "$shown" >> "$GITHUB_STEP_SUMMARY"
        if is_set "${INPUT_COMMENT:-}"; then comment "$shown"; fi
        if ((code)); then changed=true; else changed=false; fi
        echo "changed=$changed" >> "$GITHUB_OUTPUT"
        ;;
    apply)
        # `prune` is part of a plan.
        if [[ -n ${INPUT_PLAN:-} ]]; then named+=(--plan "$INPUT_PLAN"); elif is_set "${INPUT_PRUNE:-}"; then named+=(--prune); fi
        if [[ -n ${INPUT_REASON:-} ]]; then named+=("--reason=$INPUT_REASON"); fi
        if [[ -n ${INPUT_PROPOSE:-} ]]; then named+=("--propose=$INPUT_PROPOSE"); fi
        changed=false
        shown=$(concord apply "${named[@]}" --yes)
        if [[ -n $shown ]]; then
            printf '%s\n' "$shown"
            changed=true
        fi
        echo "changed=$changed" >> "$GITHUB_OUTPUT"
        ;;
    *) wrong "command is \`check\`, \`diff\` or \`apply\`" ;;
esac
