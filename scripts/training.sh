#!/usr/bin/env bash
# The loads by which the program that is distributed is laid out; scripts/pgo.sh and scripts/package.sh read this file.
#
#   train BINARY DATA     runs the loads of the benchmark on three nodes of BINARY, with their data in DATA, which is
#                         removed; 2 minutes. BINARY counts what it executes, and writes its counts when it ends.

train() {
    local binary=$1 data=$2
    install_deb setpriv util-linux || return
    install_deb protoc protobuf-compiler || return
    cargo build --release --locked --manifest-path benches/load/Cargo.toml --target-dir target/load || return
    rm -rf "$data"
    # The variable makes the benchmark end its nodes as an operator does, whatever writes the counts.
    local bench=(target/load/release/concord-bench --alone --rounds 1 --measured-ms 2000)
    bench+=(--concord "$binary" --data "$data")
    local -x LLVM_PROFILE_FILE=${LLVM_PROFILE_FILE:-/dev/null}
    "${bench[@]}" --bytes 300 --clients 1,64,256 --loads \
        "create,update-indexed,update-indexed-spread,update-plain,get-leader,get-spread,get-local,list-indexed,mixed,mixed-day,transaction-100" || return
    rm -rf "$data"
    # Over HTTP/1.1 and HTTP/2.
    "${bench[@]}" --watch --watchers 600 --changes 50 || return
    rm -rf "$data"
}
