// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Expected results of the driver's ioctls. One row has a sequence of ioctls and their results by
//! the driver of Linux 4.19, on a machine with one node and no card. Some of these results are
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
use crate::measured::{
    Row, answer_text, done, other, other_of_mpss3, other_without_traps, row, same,
};
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
    answer_text(port.map(|port| match port {
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
    row! { "device_file", |_| {
            let major = device_number(open());
        }
        major.map_or("none".to_owned(), |major| major.to_string()) =>
            other("its major number", "10", "none", "an endpoint is a socket, not a device"),
    },
    row! { "get_node_ids", |_| {
            let nodes = nodes(open());
            let Ok(nodes) = nodes else {
                return vec![done(nodes)];
            };
        }
        done(Ok(())) => same("the list", "ok"),
        nodes.own.to_string() => same("the own node", "0"),
        (nodes.online - nodes.listed).to_string() =>
            other_without_traps("entries counted but not written", "1", "0",
                "a defect: the count of copied entries is the highest node number"),
    },
    row! { "unknown_ioctl_numbers", |_| {
            let fd = open();
        }
        answer_text(raw(fd, GET_VERSION, 0)) =>
            other_of_mpss3("SCIF_GET_VERSION", "EINVAL", "1",
                "the driver of MPSS 3 (`/dev/mic/scif`) has this ioctl"),
        answer_text(raw(fd, 0xc008_7363, 0)) => same("an unknown number", "EINVAL"),
    },
    row! { "messages_without_a_connection", |_| {
            let fd = open();
            let byte = pages(1) as u64;
        }
        answer_text(send(fd, b"four", 0)) => same("send of 4 bytes", "ENOTCONN"),
        answer_text(send(fd, b"", 0)) => same("of 0 bytes", "0"),
        done(call_with_words(fd, SEND, [byte, two32(u32::MAX, 0), 0, 0, 0])) =>
            same("of -1 bytes", "EINVAL"),
        answer_text(send(fd, b"four", 2)) => same("with flags 2", "EINVAL"),
    },
    row! { "calls_on_an_unbound_endpoint", |_| {
            let fd = open();
        }
        done(listen(fd, 1)) => same("listen", "EINVAL"),
        done(accept_request(fd, 0)) => same("accept", "EINVAL"),
        bits(fd) => same("poll", "0x8"),
        hex(register_one(fd, 0, RW, 0)) => same("register", "ENOTCONN"),
        hex(register_one(fd, 0, RW, 4)) => same("with unknown flags", "EINVAL"),
    },
    row! { "connect_to_an_absent_node", |_| {
            let fd = open();
        }
        answer_text(connect_to(fd, 300, 2050)) => same("connect", "ENODEV"),
    },
    Row {
        // The driver loses a port by it. A driver before 4.19 is documented to bind, as all others
        // do.
        name: "connect_without_bind",
        calls: |_| {
            let (absent, fd) = (open(), open());
            let port = bind(absent);
            plain_close(absent);
            vec![
                dynamic(connect(fd, port)),
                answer_text(send(fd, b"four", 0)),
                dynamic(bind_to(fd, 0).map(u64::from)),
            ]
        },
        answers: &[
            other_without_traps(
                "connect without a listener",
                "dynamic",
                "ECONNREFUSED",
                "a defect since 4.19: success without effect",
            ),
            same("send", "ENOTCONN"),
            other_without_traps(
                "bind",
                "dynamic",
                "EINVAL",
                "the connect has bound the endpoint, as over all other drivers",
            ),
        ],
    },
    row! { "refused_connect", |_| {
            let (absent, fd) = (open(), open());
            let port = bind(absent);
            bind(fd);
        }
        answer_text(connect(fd, port)) => same("without a listener", "ECONNREFUSED"),
        answer_text(connect(fd, 0)) => same("at port 0", "ECONNREFUSED"),
        answer_text(connect(fd, listener(-1).1)) => same("with a backlog of -1", "ECONNREFUSED"),
        answer_text(connect(fd, listener(0).1)) => same("with a backlog of 0", "ECONNREFUSED"),
        answer_text(bind_to(fd, 0)) => same("bind again", "EINVAL"),
    },
    row! { "dynamic_ports", |_| {
            let ports: Vec<u32> = (0..3).map(|_| bind(open())).collect();
            // Number of dynamic ports; after the last one follows the first.
            let ahead = |i: usize| (ports[i] + 64447 - ports[i - 1]) % 64447 < 1000;
            let next = |i| if ahead(i) { "higher" } else { "lower" }.to_owned();
        }
        dynamic(Ok(ports[0].into())) => same("the first", "dynamic"),
        next(1) => same("the second", "higher"),
        next(2) => same("the third", "higher"),
    },
    row! { "bind_in_each_state", |_| {
            let (listener, port) = listener(1);
            let (bound, (connected, _, _)) = (open(), connection());
            bind(bound);
        }
        answer_text(bind_to(open(), port as u16)) => same("to a port in use", "EINVAL"),
        answer_text(bind_to(bound, 0)) => same("bound", "EINVAL"),
        answer_text(bind_to(listener, 0)) => same("listening", "EISCONN"),
        answer_text(bind_to(connected, 0)) => same("connected", "EISCONN"),
    },
    row! { "reserved_ports", |_| {
            // Both are opened by the first user, because an ordinary user may lack the permission.
            let (one, other) = (open(), open());
            // An error means that the process already belongs to an ordinary user.
            let _ = become_ordinary_user();
        }
        answer_text(bind_to(one, 1023)) => same("1023 for an ordinary user", "EACCES"),
        answer_text(bind_to(other, 1024)) => same("1024", "1024"),
    },
    row! { "calls_in_other_states", |_| {
            let (listener, port) = listener(1);
            let (connected, _, _) = connection();
        }
        done(listen(listener, 1)) => same("listen twice", "EISCONN"),
        done(listen(connected, 1)) => same("listen, connected", "EISCONN"),
        answer_text(connect(listener, port)) => same("connect, listening", "EOPNOTSUPP"),
        answer_text(connect(connected, port)) => same("connect, connected", "EISCONN"),
        done(accept_request(connected, 0)) => same("accept, connected", "EINVAL"),
    },
    row! { "arguments_of_accept", |_| {
            let (listener, _) = listener(1);
        }
        done(accept_request(listener, 0)) => same("without a request", "EAGAIN"),
        done(call_with_words(listener, ACCEPTREQ, [2, 0, 0, 0, 0])) => same("flags 2", "EINVAL"),
        done(put_accepted(open(), 0x1234)) => same("an unknown cookie", "ENOENT"),
    },
    row! { "nonblocking_messages", |_| {
            let (a, _b, _) = connection();
        }
        answer_text(receive(a, 8, 0)) => same("recv, empty", "0"),
        answer_text(receive(a, 8, 2)) => same("flags 2", "EINVAL"),
        answer_text(send(a, &[0; 20_000], 0)) => same("send of 20000 bytes", "4095"),
        answer_text(send(a, &[0; 20_000], 0)) => same("send, full", "0"),
    },
    row! { "poll_of_a_connection", |_| {
            let (a, b, _) = connection();
            let idle = bits(a);
            send(a, &[0; 20_000], 0).unwrap();
            within(PATIENCE, || raw_poll(b, IN, 0) == IN);
        }
        idle => same("idle", "0x4"),
        bits(a) => same("the sender, full", "0x0"),
        bits(b) => same("the receiver", "0x5"),
    },
    row! { "send_from_null", |_| {
            let (a, _b, _) = connection();
        }
        done(call_with_words(a, SEND, [0, two32(4, 0), 0, 0, 0])) => same("NULL", "EFAULT"),
    },
    row! { "close_while_mapping", |_| {
            let (a, b, _) = connection();
            window(a, 1, 0x10000, RW);
            map(b, PAGE, 0x10000).unwrap();
            send(b, b"bytes", 0).unwrap();
            plain_close(b);
            hangs_up(a);
        }
        answer_text(send(a, b"1", 0)) =>
            other_without_traps("send to a closed endpoint with a mapping", "1", "ECONNRESET",
                "here a mapping does not keep the descriptor open, and stays usable"),
        bits(a) =>
            other_without_traps("poll, with unread bytes", "0x5", "0x15",
                "the same: the close is visible"),
    },
    row! { "messages_after_the_close_of_the_peer", |_| {
            let (a, b, _) = connection();
            send(b, b"bytes", 0).unwrap();
            plain_close(b);
            hangs_up(a);
        }
        bits(a) => same("poll, 5 bytes left", "0x15"),
        answer_text(send(a, b"1", 0)) => same("send", "ECONNRESET"),
        answer_text(receive(a, 3, 0)) => same("recv of 3", "3"),
        answer_text(receive(a, 10, BLOCK as u32)) => same("blocking recv of 10", "2"),
        answer_text(receive(a, 10, BLOCK as u32)) => same("recv again", "ECONNRESET"),
        bits(a) => same("poll, no byte left", "0x14"),
    },
    row! { "other_calls_after_the_close_of_the_peer", |_| {
            let (a, b, _) = connection();
            window(a, 1, 0x10000, RW);
            plain_close(b);
            hangs_up(a);
        }
        hex(register_one(a, 0, RW, 0)) => same("register", "ECONNRESET"),
        done(unregister(a, 0x10000, PAGE)) => same("unregister", "ECONNRESET"),
        done(copy(a, WRITETO, 0x10000, 8, 0x20000, 0)) => same("writeto", "ECONNRESET"),
        done(mark(a, SELF)) => same("fence_mark", "ECONNRESET"),
        done(map(a, PAGE, 0x20000)) => same("mmap", "ECONNRESET"),
        answer_text(bind_to(a, 0)) => same("bind", "EISCONN"),
        done(listen(a, 1)) => same("listen", "EINVAL"),
        answer_text(connect(a, 2050)) => same("connect", "EINVAL"),
    },
    Row {
        name: "connect_with_o_nonblock",
        calls: |_| {
            let (listener, port) = listener(1);
            let opener = open();
            let own = bind(opener);
            set_nonblocking(opener, true);
            let again = || match connect(opener, port) {
                Ok(port) if port == u64::from(own) => "its port".to_owned(),
                other => answer_text(other),
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
            same("result", "its port"),
            same("again", "EISCONN"),
        ],
    },
    row! { "accept_of_a_waiting_request", |_| {
            let (listener, port) = listener(1);
            let opener = open();
            bind(opener);
            set_nonblocking(opener, true);
            assert_eq!(connect(opener, port), Err(EINPROGRESS));
            raw_poll(listener, IN, 20_000);
        }
        done(accept_request(listener, 0)) => same("without SCIF_ACCEPT_SYNC", "ok"),
    },
    row! { "connect_without_accept", |driver_kind| {
            // Without a driver the time-out can be set.
            const SET: &str = "50";
            set_env("SCIF_CONNECT_TIMEOUT_MS", SET);
            let limit = if driver_kind.is_driver() { 30_000 } else { SET.parse().unwrap() };
            let (_listener, port) = listener(1);
            let fd = open();
            bind(fd);
            let begin = Instant::now();
            let refused = answer_text(connect(fd, port));
            let waited = begin.elapsed() >= Duration::from_millis(limit);
        }
        refused => same("connect", "ECONNREFUSED"),
        waited.to_string() => same("the limit has passed", "true"),
        answer_text(bind_to(fd, 0)) => same("bind again", "EINVAL"),
    },
    row! { "bind_to_the_port_of_a_closed_listener", |_| {
            let (listener, port) = listener(1);
            plain_close(listener);
            let again = bind_to(open(), port as u16);
        }
        answer_text(again.map(|again| again == port)) => same("bound again", "true"),
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
