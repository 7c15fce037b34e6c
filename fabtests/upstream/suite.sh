#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Process 1 of the namespace made by run.sh: runs the tests of the given sets and writes a record
# for each (table.awk). It is a shell, because it must reap all remaining processes. It reads the
# variables that run.sh exports.
#
# Tests, their processes and their arguments follow fabtests' runfabtests.sh, whose lists are read
# from it: a server, a second later a client. A test has passed when all processes end with 0. It
# was not run when all end with FI_ENODATA, or all with FI_ENOSYS; else it has failed.
#
# With FT_NET the processes of a test run on two hosts: the server and every second client on the
# first, the other clients on the second.
set -u

ENODATA=61
ENOSYS=38
# Addresses of the first host and of the second.
HOST=127.0.0.1
OTHER=$HOST
TIMEOUT=${FT_TIMEOUT:-120}

cd "$WORK" || exit 2
ip link set lo up 2>/dev/null
if [ -n "${FT_NET:-}" ]; then
    . "$HERE/../net/hosts.sh"
    trap hosts_down EXIT
    hosts_up 2 || exit 2
    HOST=$HOSTS_NET.1
    OTHER=$HOSTS_NET.2
fi

# Prints the lines of a list of runfabtests.sh.
list_of() {
    sed -n "/^$1=(/,/^)/s/^[[:space:]]*\"\(.*\)\".*/\1/p" "$BIN/runfabtests.sh"
}

mapfile -t EXCLUDED < <(grep -v -e '^[[:space:]]*#' -e '^[[:space:]]*$' "$EXCLUDE")

# Whether the test of this name is to be run; an excluded one is recorded.
wanted() {
    local pattern
    [[ $1 =~ ${FT_ONLY:-} ]] || return 1
    for pattern in ${EXCLUDED[@]+"${EXCLUDED[@]}"}; do
        if [[ $1 =~ $pattern ]]; then
            printf -- '- name: %s\n  result: excluded\n  reason: %s\n' "$1" "$pattern of $EXCLUDE"
            return 1
        fi
    done
}

# record NAME COUNT STATUS...: records the end of a test; the output of its processes is in the
# files said.*.
record() {
    local name=$1 count=$2 result=fail all=("${@:3}") file
    local reason="statuses $(IFS=' '; echo "${*:3}")"
    case $(printf '%s\n' "${all[@]}" | sort -u | tr '\n' ' ') in
        "0 ") result=pass ;;
        "$ENODATA ") result=notrun reason="no offer for what it asks (FI_ENODATA)" ;;
        "$ENOSYS ") result=notrun reason="no such function (FI_ENOSYS)" ;;
        *124*) reason="not done after $TIMEOUT s" ;;
    esac
    printf -- '- name: %s\n  result: %s\n  time: %s\n  count: %s\n  reason: %s\n' \
        "$name" "$result" "$((SECONDS - BEGAN))" "$count" "$reason"
    for file in said.*; do
        printf '  %s:\n' "${file#said.}"
        # Completes the last line, which may lack its newline.
        awk '{ print "    " $0 }' "$file"
    done
}

# start NAME COMMAND...: runs in the background, within the time limit; stores its process id in
# LAST. On a host the command ends with the process that entered it.
start() {
    local enter=() host=1
    if [ -n "${FT_NET:-}" ]; then
        case $1 in client | client*[13579]) host=2 ;; esac
        enter=(nsenter -t "${HOSTS_PIDS[host]}" "${HOSTS_ENTER[@]}" setpriv --pdeathsig KILL)
    fi
    timeout -k 5 "$TIMEOUT" ${enter[@]+"${enter[@]}"} "${@:2}" >"said.$1" 2>&1 &
    LAST=$!
}

begin() {
    rm -f said.*
    BEGAN=$SECONDS
}

# Ends a process without further partners, after two seconds in which it may end by itself. Returns
# its exit status.
dismiss() {
    local pid=$1 tries
    for tries in 1 2 3 4 5 6 7 8; do
        kill -0 "$pid" 2>/dev/null || break
        sleep 0.25
    done
    kill "$pid" 2>/dev/null
    wait "$pid"
}

# alone NAME WANTED COMMAND...: one process that must end with the status WANTED.
alone() {
    local name=$1 status
    wanted "$name" || return
    begin
    start process "${@:3}"
    wait "$LAST"
    status=$?
    [ "$2" -eq 0 ] || status=$((status == $2 ? 0 : 1))
    record "$name" 1 "$status"
}

# Runs the two processes of a test: pair NAME COMMAND...
pair() {
    local name=$1 server client client_status
    wanted "$name" || return
    begin
    start server "${@:2}" -s "$HOST"
    server=$LAST
    sleep 1
    start client "${@:2}" -s "$OTHER" "$HOST"
    client=$LAST
    wait "$client"
    client_status=$?
    if [ "$client_status" -eq 0 ]; then wait "$server"; else dismiss "$server"; fi
    record "$name" 1 "$?" "$client_status"
}

# Runs a job: multinode NAME PROCESSES COMMAND...
multinode() {
    local name=$1 processes=$2 server i status=0 clients=() statuses=()
    wanted "$name" || return
    begin
    start server "${@:3}" -n "$processes" -s "$HOST"
    server=$LAST
    sleep 1
    for ((i = 1; i < processes; i++)); do
        start "client$i" "${@:3}" -n "$processes" -s "$HOST"
        clients+=("$LAST")
    done
    for i in "${clients[@]}"; do
        wait "$i"
        statuses+=("$?")
        [ "${statuses[-1]}" -eq 0 ] || status=1
    done
    if [ "$status" -eq 0 ]; then wait "$server"; else dismiss "$server"; fi
    statuses+=("$?")
    # The program exits with 1 if fi_getinfo returns no offer.
    if [ "$(grep -l 'fi_getinfo.*(No data available)' said.* | wc -l)" -eq "$processes" ]; then
        statuses=("$ENODATA")
    fi
    record "$name" 1 "${statuses[@]}"
}

# Runs all combinations of a configuration of fi_ubertest, fifty at a time: ubertest CONFIG
ubertest() {
    local config=$CONFIGS/$1.test first last all=1 step=50 server client statuses name good
    for ((first = 1; first <= all; first += step)); do
        last=$((first + step - 1))
        name="fi_ubertest $1 from $first"
        # The total number is known when the first part has run.
        [ "$first" -eq 1 ] || wanted "$name" || continue
        begin
        start server "$BIN/fi_ubertest" -x
        server=$LAST
        sleep 1
        start client "$BIN/fi_ubertest" -u "$config" -y "$first" -z "$last" "$HOST"
        client=$LAST
        wait "$client"
        statuses=("$?")
        if [ "${statuses[0]}" -eq 0 ]; then wait "$server"; else dismiss "$server"; fi
        statuses+=("$?")
        all=$(sed -n 's/^Test configurations loaded: //p' said.client)
        if [ -z "$all" ]; then
            record "$name" 1 1
            return
        fi
        [ "$last" -le "$all" ] || last=$all
        # Its exit status ignores failed combinations; its counts show them.
        good=$(sed -n 's/^Success: //p' said.client)
        [ "${good:-0}" -eq $((last - first + 1)) ] || statuses+=(1)
        [ "$first" -ne 1 ] || wanted "$name" || continue
        record "$name" $((last - first + 1)) "${statuses[@]}"
    done
}

# Prints the tests of fabtests' pytest/shm with host memory, without fi_ubertest, one line each: a
# program that runs alone, or the two of a pair. In these tests `short` is -I 5, and `standard` the
# program's own count. `delivery_complete` is -U, `with_datacheck` is -v, a message size is -S, and
# a counter as type of completions is -t counter. The suites of 2.x have fi_flood, older ones fi_bw
# instead.
pytest_list() {
    local level count size op times program short how
    local perf="--data-progress manual --control-progress unified"
    echo "fi_av_xfer -e rdm"
    echo "fi_av_xfer -e dgram"
    printf 'alone %s\n' fi_cntr_test fi_cq_test "fi_dom_test -n 2" fi_eq_test \
        "fi_getinfo_test -s $HOST $HOST" fi_mr_test sighandler_test
    for how in rdm msg; do
        for times in " -I 5" ""; do echo "fi_multi_recv -e $how$times"; done
    done
    echo "fi_rdm_tagged_peek"
    if [ -x "$BIN/fi_flood" ]; then
        for level in "" " -U"; do
            echo "fi_rdm$level"
            echo "fi_flood -e rdm -v -T 1$level"
            for times in " -I 5" ""; do
                echo "fi_rdm_atomic$times$level"
                for program in fi_rdm_pingpong fi_rdm_tagged_pingpong fi_rdm_tagged_bw; do
                    for how in "" " -t counter"; do echo "$program $perf$times$level$how -v"; done
                done
                for op in read writedata write; do
                    echo "fi_rma_bw -e rdm -o $op $perf$times$level -v -S all"
                done
                echo "fi_rma_pingpong -e rdm -o writedata $perf$times$level -v -S all"
            done
            for size in 0,4,64 4048,4,4148 8000,4,9000 17000,4,18000 0,4096,1048576; do
                for op in read writedata write; do
                    echo "fi_rma_bw -e rdm -o $op -I 5$level -v -S r:$size"
                done
            done
            for size in 4048,4,4148 8000,4,9000 17000,4,18000; do
                echo "fi_rma_pingpong -e rdm -o writedata -I 5$level -v -S r:$size"
            done
            # shm omits some of these, because it cannot keep as many messages.
            for size in 1 512 9000 18000; do
                for count in 1 1024 2048; do
                    echo "fi_unexpected_msg -e rdm -M $count -I 5$level -v -S $size"
                done
            done
        done
    else
        for level in "" " -U"; do
            echo "fi_rdm$level"
            echo "fi_bw -e rdm -v -T 1$level"
            for times in " -I 5" ""; do
                echo "fi_rdm_atomic$times$level"
                for program in fi_rdm_pingpong fi_rdm_tagged_pingpong fi_rdm_tagged_bw; do
                    echo "$program$times$level -v"
                done
                for op in read writedata write; do
                    echo "fi_rma_bw -e rdm -o $op$times$level -v"
                done
            done
        done
        for how in msg rdm; do echo "fi_unexpected_msg -e $how -I 10"; done
    fi
}

# Prints the tests over lnx, which owns the queues and the tag matching of its members: tagged
# messages only. Its addresses cannot be resolved, so they are exchanged (-E).
lnx_list() {
    "$BIN/fi_info" -p lnx >/dev/null 2>&1 || return 0
    local level
    for level in "" " -U"; do
        printf '%s\n' "fi_rdm_tagged_pingpong -v -E$level" "fi_rdm_tagged_bw -v -E$level"
    done
    printf '%s\n' "fi_rdm_tagged_peek -E" "fi_unexpected_msg -e rdm -E -I 10" \
        "fi_unexpected_msg -e rdm -E -I 10 -v -M 1024 -S 9000"
}

# Whether this fabtests, or its libfabric, is too old to have the set.
lacks() {
    case $1 in
        threaded) [ ! -x "$BIN/fi_rdm_bw_mt" ] ;;
        lnx) ! "$BIN/fi_info" -p lnx >/dev/null 2>&1 ;;
        *) false ;;
    esac
}

# run_set SET
run_set() {
    local test words list PROV=$PROV
    [ "$1" != lnx ] || export FI_LNX_PROV_LINKS=$PROV PROV=lnx
    mapfile -t list < <(
        case $1 in
        neg) list_of neg_unit_tests ;;
        pytest) pytest_list ;;
        lnx) lnx_list ;;
        *) list_of "$1_tests" ;;
        esac
    )
    if [ "${#list[@]}" -eq 0 ]; then
        if lacks "$1"; then
            echo "note: this fabtests has no set $1"
        else
            printf -- '- name: set %s\n  result: fail\n' "$1"
            printf '  reason: no test of this set was found\n'
        fi
        return
    fi
    for test in "${list[@]}"; do
        test=${test//SERVER_ADDR/$HOST}
        test=${test//GOOD_ADDR/$OTHER}
        case $1 in
            unit | neg | regression | multinode) ;;
            *) [[ $test == "alone "* ]] || test+=${FT_ARGS:+ $FT_ARGS} ;;
        esac
        read -ra words <<<"${test#alone }"
        words=("$BIN/${words[0]}" "${words[@]:1}")
        case $1 in
            neg) alone "$test" "$ENODATA" "${words[@]}" -p "$PROV" ;;
            unit | regression) alone "$test" 0 "${words[@]}" -p "$PROV" ;;
            multinode) multinode "$test" 3 "${words[@]}" -p "$PROV" ;;
            *) if [[ $test == "alone "* ]]; then
                alone "${test#alone }" 0 "${words[@]}" -p "$PROV"
            else
                pair "$test" "${words[@]}" -p "$PROV"
            fi ;;
        esac
    done
}

for set in "$@"; do
    case $set in
        complex) ubertest quick && ubertest verify ;;
        quick | verify | all) ubertest "$set" ;;
        unit | neg | functional | short | standard | threaded | multinode | regression | pytest | \
            lnx) run_set "$set" ;;
        *)
            echo "no set $set" >&2
            exit 2
            ;;
    esac
done
exit 0
