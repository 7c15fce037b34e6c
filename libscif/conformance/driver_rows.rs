// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Expected results of the driver's ioctls. One row has a sequence of ioctls and the results that
//! the driver of Linux 4.19 gave, on a machine with one node and no card. Some of these results are
//! defects of the driver.
//!
//! A row contains both results if `libscifdev.so` returns another one. The README of
//! `libscifdev.so` lists each difference in the same words.
//!
//! The requests depend neither on the number of nodes nor on ports of other programs.

use std::time::{Duration, Instant};

use libc::EINPROGRESS;
use scif_fabtests::harness::sandbox::become_ordinary_user;

use crate::driver_windows::{self, SELF, hex, register_one, window};
use crate::ioctl::*;
use crate::measured::{Row, done, other, other_of_mpss3, said, same};
use crate::rig::{
    BLOCK, HUP, IN, OUT, PAGE, RW, pages, plain_close, raw_poll, set_env, set_nonblocking, within,
};

/// Time to wait for an event that one of the devices never shows.
const PATIENCE: Duration = Duration::from_secs(5);

/// Returns the bits of poll, as numbers of the header.
fn bits(fd: i32) -> String {
    format!("{:#x}", raw_poll(fd, IN | OUT, 0))
}

/// Formats a port, which must be a dynamic one.
fn dynamic(port: Result<u64, i32>) -> String {
    said(port.map(|port| match port {
        1089..65536 => "dynamic".to_owned(),
        other => other.to_string(),
    }))
}

/// Makes a listener and returns its port.
fn listener(backlog: i32) -> (i32, u32) {
    let fd = open();
    let port = bind(fd);
    listen(fd, backlog).unwrap();
    (fd, port)
}

fn receive(fd: i32, len: usize, flags: u32) -> Result<u32, i32> {
    message(fd, RECV, &mut vec![0; len], flags)
}

/// Waits for a hang-up, since close does not wait until the peer shows it.
fn hangs_up(fd: i32) -> bool {
    within(PATIENCE, || raw_poll(fd, 0, 0) & HUP == HUP)
}

const ROWS: &[Row] = &[
    Row {
        name: "the_device",
        ask: |_| {
            let major = device_number(open());
            vec![major.map_or("none".to_owned(), |major| major.to_string())]
        },
        answers: &[other(
            "its major number",
            "10",
            "none",
            "there is no device; an endpoint is a socket",
        )],
    },
    Row {
        name: "the_list_of_nodes",
        ask: |_| {
            let nodes = nodes(open());
            let Ok(nodes) = nodes else {
                return vec![done(nodes)];
            };
            vec![done(Ok(())), nodes.own.to_string(), (nodes.online - nodes.listed).to_string()]
        },
        answers: &[
            same("the list", "ok"),
            same("the own node", "0"),
            other(
                "nodes that are counted and not written",
                "1",
                "0",
                "a defect: as many are copied as the highest number says",
            ),
        ],
    },
    Row {
        name: "other_numbers",
        ask: |_| {
            let fd = open();
            vec![said(raw(fd, GET_VERSION, 0)), said(raw(fd, 0xc008_7363, 0))]
        },
        answers: &[
            other_of_mpss3(
                "SCIF_GET_VERSION",
                "EINVAL",
                "1",
                "of `/dev/mic/scif`: the driver of MPSS 3 has this number",
            ),
            same("a number of none", "EINVAL"),
        ],
    },
    Row {
        name: "messages_without_a_connection",
        ask: |_| {
            let fd = open();
            let byte = pages(1) as u64;
            vec![
                said(send(fd, b"four", 0)),
                said(send(fd, b"", 0)),
                done(ask(fd, SEND, [byte, two32(u32::MAX, 0), 0, 0, 0])),
                said(send(fd, b"four", 2)),
            ]
        },
        answers: &[
            same("send of 4 bytes", "ENOTCONN"),
            same("of none", "0"),
            same("of -1", "EINVAL"),
            same("with flags 2", "EINVAL"),
        ],
    },
    Row {
        name: "an_unbound_endpoint",
        ask: |_| {
            let fd = open();
            vec![
                done(listen(fd, 1)),
                done(accept_request(fd, 0)),
                bits(fd),
                hex(register_one(fd, 0, RW, 0)),
                hex(register_one(fd, 0, RW, 4)),
            ]
        },
        answers: &[
            same("listen", "EINVAL"),
            same("accept", "EINVAL"),
            same("poll", "0x8"),
            same("register", "ENOTCONN"),
            same("with flags that are none", "EINVAL"),
        ],
    },
    Row {
        name: "a_node_that_is_not_there",
        ask: |_| {
            let fd = open();
            vec![said(connect_to(fd, 300, 2050))]
        },
        answers: &[same("connect", "ENODEV")],
    },
    Row {
        // The driver loses a port by it. A driver before 4.19 is documented to bind, as all others
        // do.
        name: "connect_without_bind",
        ask: |_| {
            let (absent, fd) = (open(), open());
            let port = bind(absent);
            plain_close(absent);
            vec![
                dynamic(connect(fd, port)),
                said(send(fd, b"four", 0)),
                dynamic(bind_to(fd, 0).map(u64::from)),
            ]
        },
        answers: &[
            other(
                "connect to nobody",
                "dynamic",
                "ECONNREFUSED",
                "a defect since 4.19: success, and nothing was done",
            ),
            same("send", "ENOTCONN"),
            other("bind", "dynamic", "EINVAL", "connecting has bound it, as in all other drivers"),
        ],
    },
    Row {
        name: "connect_is_refused",
        ask: |_| {
            let (absent, fd) = (open(), open());
            let port = bind(absent);
            bind(fd);
            vec![
                said(connect(fd, port)),
                said(connect(fd, 0)),
                said(connect(fd, listener(-1).1)),
                said(connect(fd, listener(0).1)),
                said(bind_to(fd, 0)),
            ]
        },
        answers: &[
            same("where nobody listens", "ECONNREFUSED"),
            same("at port 0", "ECONNREFUSED"),
            same("with a backlog of -1", "ECONNREFUSED"),
            same("of 0", "ECONNREFUSED"),
            same("bind again", "EINVAL"),
        ],
    },
    Row {
        name: "dynamic_ports",
        ask: |_| {
            let ports: Vec<u32> = (0..3).map(|_| bind(open())).collect();
            // Number of dynamic ports; after the last one follows the first.
            let ahead = |i: usize| (ports[i] + 64447 - ports[i - 1]) % 64447 < 1000;
            let next = |i| if ahead(i) { "higher" } else { "lower" }.to_owned();
            vec![dynamic(Ok(ports[0].into())), next(1), next(2)]
        },
        answers: &[
            same("the first", "dynamic"),
            same("the second", "higher"),
            same("the third", "higher"),
        ],
    },
    Row {
        name: "bind_in_each_state",
        ask: |_| {
            let (listener, port) = listener(1);
            let (bound, (connected, _, _)) = (open(), connection());
            bind(bound);
            vec![
                said(bind_to(open(), port as u16)),
                said(bind_to(bound, 0)),
                said(bind_to(listener, 0)),
                said(bind_to(connected, 0)),
            ]
        },
        answers: &[
            same("to a port in use", "EINVAL"),
            same("bound", "EINVAL"),
            same("listening", "EISCONN"),
            same("connected", "EISCONN"),
        ],
    },
    Row {
        name: "reserved_ports",
        ask: |_| {
            // Both are opened by the first user, because an ordinary user may lack the permission.
            let (one, other) = (open(), open());
            // An error means that the process already belongs to an ordinary user.
            let _ = become_ordinary_user();
            vec![said(bind_to(one, 1023)), said(bind_to(other, 1024))]
        },
        answers: &[same("1023 for an ordinary user", "EACCES"), same("1024", "1024")],
    },
    Row {
        name: "calls_in_other_states",
        ask: |_| {
            let (listener, port) = listener(1);
            let (connected, _, _) = connection();
            vec![
                done(listen(listener, 1)),
                done(listen(connected, 1)),
                said(connect(listener, port)),
                said(connect(connected, port)),
                done(accept_request(connected, 0)),
            ]
        },
        answers: &[
            same("listen twice", "EISCONN"),
            same("listen, connected", "EISCONN"),
            same("connect, listening", "EOPNOTSUPP"),
            same("connect, connected", "EISCONN"),
            same("accept, connected", "EINVAL"),
        ],
    },
    Row {
        name: "what_accept_looks_at",
        ask: |_| {
            let (listener, _) = listener(1);
            vec![
                done(accept_request(listener, 0)),
                done(ask(listener, ACCEPTREQ, [2, 0, 0, 0, 0])),
                done(put_accepted(open(), 0x1234)),
            ]
        },
        answers: &[
            same("without a request", "EAGAIN"),
            same("flags 2", "EINVAL"),
            same("a cookie of none", "ENOENT"),
        ],
    },
    Row {
        name: "messages_that_do_not_wait",
        ask: |_| {
            let (a, _b, _) = connection();
            vec![
                said(receive(a, 8, 0)),
                said(receive(a, 8, 2)),
                said(send(a, &[0; 20_000], 0)),
                said(send(a, &[0; 20_000], 0)),
            ]
        },
        answers: &[
            same("recv, empty", "0"),
            same("flags 2", "EINVAL"),
            same("send of 20000 bytes", "4095"),
            same("send, full", "0"),
        ],
    },
    Row {
        name: "poll_of_a_connection",
        ask: |_| {
            let (a, b, _) = connection();
            let idle = bits(a);
            send(a, &[0; 20_000], 0).unwrap();
            within(PATIENCE, || raw_poll(b, IN, 0) == IN);
            vec![idle, bits(a), bits(b)]
        },
        answers: &[
            same("idle", "0x4"),
            same("the sender, full", "0x0"),
            same("the receiver", "0x5"),
        ],
    },
    Row {
        name: "send_of_nothing_there",
        ask: |_| {
            let (a, _b, _) = connection();
            vec![done(ask(a, SEND, [0, two32(4, 0), 0, 0, 0]))]
        },
        answers: &[same("NULL", "EFAULT")],
    },
    Row {
        name: "close_while_mapping",
        ask: |_| {
            let (a, b, _) = connection();
            window(a, 1, 0x10000, RW);
            map(b, PAGE, 0x10000).unwrap();
            send(b, b"bytes", 0).unwrap();
            plain_close(b);
            hangs_up(a);
            vec![said(send(a, b"1", 0)), bits(a)]
        },
        answers: &[
            other(
                "send to whoever closed and maps",
                "1",
                "ECONNRESET",
                "a mapping holds no descriptor here; it stays usable",
            ),
            other("poll, with bytes from it", "0x5", "0x15", "the same: the peer sees the close"),
        ],
    },
    Row {
        name: "the_peer_has_closed",
        ask: |_| {
            let (a, b, _) = connection();
            send(b, b"bytes", 0).unwrap();
            plain_close(b);
            hangs_up(a);
            vec![
                bits(a),
                said(send(a, b"1", 0)),
                said(receive(a, 3, 0)),
                said(receive(a, 10, BLOCK as u32)),
                said(receive(a, 10, BLOCK as u32)),
                bits(a),
            ]
        },
        answers: &[
            same("poll, 5 bytes left", "0x15"),
            same("send", "ECONNRESET"),
            same("recv of 3", "3"),
            same("recv of 10 that waits", "2"),
            same("recv again", "ECONNRESET"),
            same("poll, no byte left", "0x14"),
        ],
    },
    Row {
        name: "calls_after_the_peer_has_closed",
        ask: |_| {
            let (a, b, _) = connection();
            window(a, 1, 0x10000, RW);
            plain_close(b);
            hangs_up(a);
            vec![
                hex(register_one(a, 0, RW, 0)),
                done(unregister(a, 0x10000, PAGE)),
                done(copy(a, WRITETO, 0x10000, 8, 0x20000, 0)),
                done(mark(a, SELF)),
                done(map(a, PAGE, 0x20000)),
                said(bind_to(a, 0)),
                done(listen(a, 1)),
                said(connect(a, 2050)),
            ]
        },
        answers: &[
            same("register", "ECONNRESET"),
            same("unregister", "ECONNRESET"),
            same("writeto", "ECONNRESET"),
            same("fence_mark", "ECONNRESET"),
            same("mmap", "ECONNRESET"),
            same("bind", "EISCONN"),
            same("listen", "EINVAL"),
            same("connect", "EINVAL"),
        ],
    },
    Row {
        name: "connect_with_o_nonblock",
        ask: |_| {
            let (listener, port) = listener(1);
            let opener = open();
            let own = bind(opener);
            set_nonblocking(opener, true);
            let again = || match connect(opener, port) {
                Ok(port) if port == u64::from(own) => "its port".to_owned(),
                other => said(other),
            };
            let mut heard = vec![again(), bits(opener), again()];
            let (_, cookie) = accept_request(listener, BLOCK as u32).unwrap();
            put_accepted(open(), cookie).unwrap();
            raw_poll(opener, IN | OUT, 20_000);
            heard.extend([bits(opener), again(), again()]);
            heard
        },
        answers: &[
            same("first", "EINPROGRESS"),
            same("poll", "0x0"),
            same("again", "EINPROGRESS"),
            same("poll, accepted", "0x4"),
            same("collected", "its port"),
            same("once more", "EISCONN"),
        ],
    },
    Row {
        name: "accept_of_a_request_that_is_there",
        ask: |_| {
            let (listener, port) = listener(1);
            let opener = open();
            bind(opener);
            set_nonblocking(opener, true);
            assert_eq!(connect(opener, port), Err(EINPROGRESS));
            raw_poll(listener, IN, 20_000);
            vec![done(accept_request(listener, 0))]
        },
        answers: &[same("without SCIF_ACCEPT_SYNC", "ok")],
    },
    Row {
        name: "nobody_accepts",
        ask: |driver_kind| {
            // Without a driver the time-out can be set.
            const SET: &str = "50";
            set_env("SCIF_CONNECT_TIMEOUT_MS", SET);
            let limit = if driver_kind.is_driver() { 30_000 } else { SET.parse().unwrap() };
            let (_listener, port) = listener(1);
            let fd = open();
            bind(fd);
            let begin = Instant::now();
            let refused = said(connect(fd, port));
            let waited = begin.elapsed() >= Duration::from_millis(limit);
            vec![refused, waited.to_string(), said(bind_to(fd, 0))]
        },
        answers: &[
            same("connect", "ECONNREFUSED"),
            same("not before its limit", "true"),
            same("bind again", "EINVAL"),
        ],
    },
    Row {
        name: "a_port_whose_listener_closed",
        ask: |_| {
            let (listener, port) = listener(1);
            plain_close(listener);
            let again = bind_to(open(), port as u16);
            vec![said(again.map(|again| again == port))]
        },
        answers: &[same("bound again", "true")],
    },
];

/// Returns all rows.
pub(crate) fn rows() -> impl Iterator<Item = &'static Row> {
    ROWS.iter().chain(driver_windows::ROWS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_agree_with_their_answers() {
        let mut names = Vec::new();
        for row in rows() {
            assert!(!names.contains(&row.name), "{} twice", row.name);
            names.push(row.name);
            assert!(!row.answers.is_empty(), "{}", row.name);
            for (answer, instead) in row.otherwise() {
                assert_ne!(answer.driver, instead.said, "{}: {}", row.name, answer.subject);
                assert!(!instead.why.is_empty());
            }
        }
    }
}
