# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Sourced by check.sh, after jobs.sh: what counters and scifctl show of jobs between hosts, and what
# a network costs at the start of a job.

# statistics WHERE LOG: compares the counters of the endpoints of a job (FI_SCIF_STATS). WHERE:
# `apart`, each rank on its own host, so that all messages cross the network but those of a rank to
# itself (Intel MPI), which it sends and receives; `mixed`, several ranks on each host; `here`, all
# ranks on one host, so that no message does.
statistics() {
    awk -v where="$1" '
        # Difference of the messages that a rank sent and received within its host.
        function own(n) {
            return n["sent"] - n["foreign_sent"] - (n["received"] - n["foreign_received"])
        }
        # Each endpoint has a line "... endpoint NAME peers N NAME OPERATIONS/BYTES ...".
        /scif: endpoint .* sent / {
            print
            for (i = 1; i < NF; i++) {
                split($(i + 1), n, "/")
                ops[$i] = n[1]
                bytes[$i] = n[2]
                sum[$i " ops"] += n[1]
                sum[$i " bytes"] += n[2]
            }
            if (ops["sent"] == 0) next
            ranks++
            if (where == "apart" && (ops["foreign_sent"] == 0 || own(ops) || own(bytes))) bad++
            if (where == "mixed") {
                if (ops["foreign_sent"] == 0 || ops["foreign_sent"] >= ops["sent"]) bad++
                if (ops["process_vm"] + ops["both_sides"] == 0) bad++
            }
        }
        END {
            printf "%d ranks, %d messages of %d bytes, to other hosts %d of %d bytes; %d wrong\n",
                ranks, sum["sent ops"], sum["sent bytes"], sum["foreign_sent ops"],
                sum["foreign_sent bytes"], bad
            split("ops bytes", units)
            for (at = 1; at <= 2; at++) {
                unit = " " units[at]
                if (sum["foreign_sent" unit] != sum["foreign_received" unit]) bad++
                others = sum["foreign_rma" unit] + sum["network_reads" unit]
                if (where == "here" && sum["foreign_sent" unit] + others > 0) bad++
                if (where != "here" && sum["foreign_rma" unit] == 0) bad++
                if (where != "here" && sum["network_reads" unit] == 0) bad++
            }
            exit bad > 0 || ranks < 2
        }' "$2"
}

# no_foreign STACK: a job within one host counts no foreign message.
no_foreign() {
    exchange "$1" "" 2 2 >"$HOSTS_RUN/here" 2>&1 && statistics here "$HOSTS_RUN/here" && return
    cat "$HOSTS_RUN/here"
    return 1
}

# peers_shown STACK NET: scifctl shows the peers of a rank, of both hosts, while the job hangs.
peers_shown() {
    local job pid rank rc=1 n tool=$TARGET/release/scifctl file=$HOSTS_RUN/hang
    : >"$file"
    RUN_BY=exec NET=$2 between_hosts "$1" scif 4 2 100 "$(stack_python "$1")" \
        "$ROOT/fabtests/mpi/jobs/hang.py" unmatched >"$file" 2>&1 &
    job=$!
    for ((n = 0; n < 300; n++)); do
        [ "$(grep -c '^hang: rank' "$file")" -lt 4 ] || break
        sleep 0.1
    done
    pid=$(sed -n 's/^hang: rank 0 pid //p' "$file")
    # The state of the peers is published every 50 ms.
    for ((n = 0; n < 50; n++)); do
        on_host 1 "$tool" peers "$pid" >"$file.text" &&
            on_host 1 "$tool" peers "$pid" --json >"$file.json" || break
        python3 - "$2" "$HOSTS_NET.2" "$file.json" <<'PYTHON' && rc=0 && break
import json, sys
network, other, document = sys.argv[1:]
[endpoint] = [e for e in json.load(open(document))["endpoints"] if e["peers"]]
near = [p for p in endpoint["peers"] if p["host"] is None]
far = [p for p in endpoint["peers"] if p["host"] == other]
good = endpoint["network"] == network and (len(near), len(far)) == (1, 2)
good = good and (near[0]["transport"], near[0]["network"]) == ("soft", None)
good = good and all((p["transport"], p["network"], p["path"], p["pid"]) ==
                    ("net", network, "network", None) for p in far)
good = good and all(p["bytes_sent"] > 0 and p["bytes_received"] > 0 for p in near + far)
sys.exit(0 if good else 1)
PYTHON
        sleep 0.1
    done
    cat "$file" "$file.text"
    # The ranks of each host, by their numbers there.
    while read -r rank pid; do
        on_host $((rank / 2 + 1)) kill -KILL "$pid" 2>/dev/null
    done < <(sed -n 's/^hang: rank \([0-9]*\) pid /\1 /p' "$file")
    kill "$job" 2>/dev/null
    wait "$job"
    return $rc
}

# start STACK NET RANKS_OF_A_HOST: prints the least resident memory of a rank in KiB and the least
# time of MPI_Init in ms, of three jobs of two ranks.
start() {
    local n
    for n in 1 2 3; do
        NET=$2 between_hosts "$1" scif 2 "$3" 60 "$(stack_python "$1")" \
            "$ROOT/fabtests/mpi/jobs/costs.py" 2>"$HOSTS_RUN/start.err" ||
            cat "$HOSTS_RUN/start.err" >&2
    done | awk '/^costs: rank/ {
            if (!n || $7 < kib) kib = $7
            if (!n || $5 < ms) ms = $5
            n++
        }
        END { print kib, ms; exit n != 6 }'
}

# start_costs STACK NET: within one host the default takes less than 1 MiB more than no network.
# The costs of a network are printed.
start_costs() {
    local none none_ms here here_ms apart apart_ms
    read -r none none_ms < <(start "$1" none 2)
    read -r here here_ms < <(start "$1" "" 2)
    read -r apart apart_ms < <(start "$1" "$2" 1)
    echo "resident memory of a rank, time of MPI_Init: without a network $none KiB $none_ms ms," \
        "by default within one host $here KiB $here_ms ms, $2 between hosts $apart KiB $apart_ms ms"
    [ -n "$none" ] && [ -n "$here" ] && ((here - none < 1024 && apart > 0))
}
