// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Tests, and the protocol about them between parent and rank: one line of text per message.
//!
//! Measurement and storage of results are in other modules.

use std::fmt;
use std::os::fd::AsFd;

use rustix::net::{RecvFlags, SendFlags, recv, send};

const LONGEST: usize = 4096;

macro_rules! tests {
    ($($(#[$doc:meta])* $name:ident = $word:literal, $unit:literal, $title:literal;)*) => {
        /// Kind of measurement.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub(crate) enum Test {
            $($(#[$doc])* $name,)*
        }

        impl Test {
            pub(crate) const ALL: &[Test] = &[$(Test::$name,)*];

            /// Name in files and options.
            pub(crate) const fn word(self) -> &'static str {
                match self { $(Test::$name => $word,)* }
            }

            /// Unit of the figures.
            pub(crate) const fn unit(self) -> &'static str {
                match self { $(Test::$name => $unit,)* }
            }

            /// Title of the table.
            pub(crate) const fn title(self) -> &'static str {
                match self { $(Test::$name => $title,)* }
            }
        }
    };
}

tests! {
    TaggedLat = "tagged_lat", "us", "tagged messages, half round trip";
    TaggedBw = "tagged_bw", "MB/s", "tagged messages, bandwidth, window 64, buffers reused";
    /// One message at a time between buffers just written and about to be read.
    TaggedTouched = "tagged_touched", "MB/s",
        "tagged messages one by one, sender writes and receiver reads its buffer between";
    TaggedRate = "tagged_rate", "M/s", "tagged messages, rate, window 64";
    MsgLat = "msg_lat", "us", "messages, half round trip";
    MsgBw = "msg_bw", "MB/s", "messages, bandwidth, window 64, buffers reused";
    MsgRate = "msg_rate", "M/s", "messages, rate, window 64";
    WriteLat = "write_lat", "us", "RMA write, one at a time";
    WritePoll = "write_poll", "us",
        "RMA write to a target that polls its memory and writes back, half round trip";
    WriteBw = "write_bw", "MB/s", "RMA write one way, bandwidth, window 64, buffers reused";
    WriteTouched = "write_touched", "MB/s",
        "RMA write one by one, initiator writes and target reads its buffer between";
    WriteRate = "write_rate", "M/s", "RMA write one way, rate, window 64";
    ReadLat = "read_lat", "us", "RMA read, one at a time";
    ReadBw = "read_bw", "MB/s", "RMA read one way, bandwidth, window 64, buffers reused";
    ReadRate = "read_rate", "M/s", "RMA read one way, rate, window 64";
    SumLat = "atomic_sum_lat", "us", "atomic sum, one at a time, target calls the library";
    SumRate = "atomic_sum_rate", "M/s",
        "atomic sum one way, rate, window 64, target calls the library";
    FetchLat = "atomic_fetch_lat", "us",
        "atomic fetch and add, one at a time, target calls the library";
    FetchRate = "atomic_fetch_rate", "M/s",
        "atomic fetch and add one way, rate, window 64, target calls the library";
    CswapLat = "atomic_cswap_lat", "us",
        "atomic compare and swap, one at a time, target calls the library";
    CswapRate = "atomic_cswap_rate", "M/s",
        "atomic compare and swap one way, rate, window 64, target calls the library";
    PollCq = "empty_poll_cq", "ns", "fi_cq_read that finds nothing, by number of silent peers";
    PollTalked = "empty_poll_talked", "ns",
        "fi_cq_read that finds nothing, by number of peers that have just sent messages";
    PollSafe = "empty_poll_safe", "ns",
        "fi_cq_read that finds nothing, FI_THREAD_SAFE, by number of silent peers";
    PollCntr = "empty_poll_cntr", "ns", "fi_cntr_read, by number of silent peers";
    PollPeek = "empty_poll_peek", "ns",
        "peek that finds nothing, with the reads of its error, by number of silent peers";
}

/// Conversion of iterations and time into the figure of a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Microseconds of half an iteration.
    HalfTrip,
    /// Microseconds of an iteration.
    Single,
    /// Megabytes per second; an iteration is a window.
    Bandwidth,
    /// Megabytes per second; an iteration is one message.
    Touched,
    /// Millions of operations per second; an iteration is a window.
    Rate,
    /// Nanoseconds of an iteration, which is a call; the size is the number of peers.
    Poll,
}

/// Number of operations posted before a wait for their completions.
pub(crate) const WINDOW: usize = 64;

impl Test {
    pub(crate) const fn kind(self) -> Kind {
        match self {
            Test::TaggedLat | Test::MsgLat | Test::WritePoll => Kind::HalfTrip,
            Test::WriteLat | Test::ReadLat | Test::SumLat | Test::FetchLat | Test::CswapLat => {
                Kind::Single
            }
            Test::TaggedBw | Test::MsgBw | Test::WriteBw | Test::ReadBw => Kind::Bandwidth,
            Test::TaggedTouched | Test::WriteTouched => Kind::Touched,
            Test::TaggedRate
            | Test::MsgRate
            | Test::WriteRate
            | Test::ReadRate
            | Test::SumRate
            | Test::FetchRate
            | Test::CswapRate => Kind::Rate,
            Test::PollCq | Test::PollTalked | Test::PollSafe | Test::PollCntr | Test::PollPeek => {
                Kind::Poll
            }
        }
    }

    /// Whether the target may have to execute the operations.
    pub(crate) const fn is_atomic(self) -> bool {
        matches!(
            self,
            Test::SumLat
                | Test::SumRate
                | Test::FetchLat
                | Test::FetchRate
                | Test::CswapLat
                | Test::CswapRate
        )
    }

    /// Returns the column of the file for the treatment of buffers.
    pub(crate) const fn buffers(self) -> &'static str {
        if matches!(self.kind(), Kind::Touched) { "touched" } else { "reused" }
    }

    /// Returns the figure of a sample of `count` iterations of `size` bytes that took `ns`.
    #[expect(clippy::cast_precision_loss, reason = "nothing measured needs more than 52 bits")]
    pub(crate) fn value(self, size: usize, count: u64, ns: u64) -> f64 {
        let (count, ns, window) = (count as f64, ns.max(1) as f64, WINDOW as f64);
        match self.kind() {
            Kind::HalfTrip => ns / count / 2000.0,
            Kind::Single => ns / count / 1000.0,
            Kind::Bandwidth => size as f64 * window * count / ns * 1000.0,
            Kind::Touched => size as f64 * count / ns * 1000.0,
            Kind::Rate => window * count / ns * 1000.0,
            Kind::Poll => ns / count,
        }
    }

    pub(crate) fn from_word(word: &str) -> Option<Test> {
        Test::ALL.iter().copied().find(|test| test.word() == word)
    }
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// Parameters of one sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sample {
    pub(crate) test: Test,
    pub(crate) size: usize,
    pub(crate) count: u64,
    /// Whether the target of one-sided operations calls the library all the time.
    pub(crate) inside: bool,
    /// Round trip of a line in picoseconds below which no sample is taken: the processors are too
    /// near.
    pub(crate) least_ps: u64,
}

/// Result of one sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Measured {
    pub(crate) ns: u64,
    /// Round trip of a line before and after, in picoseconds.
    pub(crate) before_ps: u64,
    pub(crate) after_ps: u64,
    /// Number of involuntary context switches meanwhile.
    pub(crate) switches: u64,
    /// Whether one-sided operations stalled until the target called the library.
    pub(crate) stalled: bool,
}

/// Order of the parent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Order {
    Run(Sample),
    /// Probe the placement this many times.
    Probe(u64),
    /// Open the endpoint for tagged messages and reply with its name.
    Name,
    /// Receive a message from each of this many unknown endpoints, and reply to each.
    Adopt(u64),
    /// Open this many endpoints and exchange a message with that name from each.
    Visit(u64, Vec<u8>),
    /// Open this many endpoints and report the cost of each: nanoseconds and resident bytes.
    Start(u64),
    /// Report the resources of the process: resident bytes and descriptors.
    Weigh,
    /// Open the endpoint for tagged messages with receives from one sender, if supported.
    Direct,
    /// Traffic until the peer is dead: rank 0 sends, or receives if false.
    Suffer(usize, bool),
}

/// Reply of a rank.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Reply {
    Measured(Measured),
    /// The placement is not the requested one; round trip in picoseconds.
    Misplaced(u64),
    Bytes(Vec<u8>),
    Numbers(Vec<u64>),
    /// The provider lacks the feature.
    Lacks(String),
    Failed(String),
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    (0..text.len() / 2)
        .map(|at| u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok())
        .collect()
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Order::Run(s) => write!(
                f,
                "run {} {} {} {} {}",
                s.test,
                s.size,
                s.count,
                u8::from(s.inside),
                s.least_ps
            ),
            Order::Probe(count) => write!(f, "probe {count}"),
            Order::Name => f.write_str("name"),
            Order::Adopt(count) => write!(f, "adopt {count}"),
            Order::Visit(count, name) => write!(f, "visit {count} {}", hex(name)),
            Order::Start(count) => write!(f, "start {count}"),
            Order::Weigh => f.write_str("weigh"),
            Order::Direct => f.write_str("direct"),
            Order::Suffer(size, sends) => write!(f, "suffer {size} {}", u8::from(*sends)),
        }
    }
}

impl Order {
    fn parse(text: &str) -> Option<Order> {
        let mut words = text.split(' ');
        let verb = words.next()?;
        let mut number = || words.next()?.parse::<u64>().ok();
        Some(match verb {
            "probe" => Order::Probe(number()?),
            "name" => Order::Name,
            "adopt" => Order::Adopt(number()?),
            "start" => Order::Start(number()?),
            "weigh" => Order::Weigh,
            "direct" => Order::Direct,
            "suffer" => Order::Suffer(usize::try_from(number()?).ok()?, number()? == 1),
            "visit" => Order::Visit(number()?, unhex(words.next()?)?),
            "run" => Order::Run(Sample {
                test: Test::from_word(words.next()?)?,
                size: words.next()?.parse().ok()?,
                count: words.next()?.parse().ok()?,
                inside: words.next()? == "1",
                least_ps: words.next()?.parse().ok()?,
            }),
            _ => return None,
        })
    }
}

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reply::Measured(m) => write!(
                f,
                "measured {} {} {} {} {}",
                m.ns,
                m.before_ps,
                m.after_ps,
                m.switches,
                u8::from(m.stalled)
            ),
            Reply::Misplaced(ps) => write!(f, "misplaced {ps}"),
            Reply::Bytes(bytes) => write!(f, "bytes {}", hex(bytes)),
            Reply::Numbers(list) => {
                f.write_str("numbers")?;
                list.iter().try_for_each(|number| write!(f, " {number}"))
            }
            Reply::Lacks(why) => write!(f, "lacks {why}"),
            Reply::Failed(why) => write!(f, "failed {why}"),
        }
    }
}

impl Reply {
    fn parse(text: &str) -> Option<Reply> {
        let (verb, rest) = text.split_once(' ').unwrap_or((text, ""));
        let numbers: Option<Vec<u64>> =
            rest.split_whitespace().map(|word| word.parse().ok()).collect();
        Some(match verb {
            "measured" => match numbers?.as_slice() {
                &[ns, before_ps, after_ps, switches, stalled] => Reply::Measured(Measured {
                    ns,
                    before_ps,
                    after_ps,
                    switches,
                    stalled: stalled == 1,
                }),
                _ => return None,
            },
            "misplaced" => Reply::Misplaced(*numbers?.first()?),
            "bytes" => Reply::Bytes(unhex(rest)?),
            "numbers" => Reply::Numbers(numbers?),
            "lacks" => Reply::Lacks(rest.to_owned()),
            "failed" => Reply::Failed(rest.to_owned()),
            _ => return None,
        })
    }
}

/// Sends one message.
pub(crate) fn send_word(to: impl AsFd, word: &impl fmt::Display) -> rustix::io::Result<()> {
    let mut text = word.to_string().into_bytes();
    text.truncate(LONGEST);
    send(to, &text, SendFlags::NOSIGNAL).map(drop)
}

fn receive_word(from: impl AsFd) -> rustix::io::Result<String> {
    let mut room = vec![0_u8; LONGEST];
    let (len, _) = recv(from, &mut room[..], RecvFlags::empty())?;
    room.truncate(len);
    Ok(String::from_utf8_lossy(&room).into_owned())
}

/// Receives the next order of the parent; `None` when it has closed its end.
pub(crate) fn receive_order(from: impl AsFd) -> rustix::io::Result<Option<Order>> {
    receive_word(from).map(|text| Order::parse(&text))
}

/// Receives the reply of a rank; `None` when it has closed its end.
pub(crate) fn receive_reply(from: impl AsFd) -> rustix::io::Result<Option<Reply>> {
    receive_word(from).map(|text| Reply::parse(&text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_understood() {
        let sample =
            Sample { test: Test::CswapRate, size: 8, count: 77, inside: true, least_ps: 90_000 };
        let orders = [
            Order::Run(sample),
            Order::Probe(3),
            Order::Name,
            Order::Adopt(250),
            Order::Visit(3, vec![1, 255]),
            Order::Start(32),
            Order::Weigh,
            Order::Direct,
            Order::Suffer(4096, true),
        ];
        for order in orders {
            assert_eq!(Order::parse(&order.to_string()), Some(order));
        }
        let measured = Measured { ns: 1, before_ps: 2, after_ps: 3, switches: 4, stalled: true };
        let replies = [
            Reply::Measured(measured),
            Reply::Misplaced(36_000),
            Reply::Bytes(vec![0, 16]),
            Reply::Numbers(vec![5, 6]),
            Reply::Lacks("no such thing".into()),
            Reply::Failed("bad luck".into()),
        ];
        for reply in replies {
            assert_eq!(Reply::parse(&reply.to_string()), Some(reply));
        }
    }

    #[test]
    fn test_names_are_unique() {
        for &test in Test::ALL {
            assert_eq!(Test::from_word(test.word()), Some(test));
        }
    }

    #[test]
    fn numbers_are_printed_with_their_unit() {
        assert!((Test::TaggedLat.value(8, 1000, 660_000) - 0.33).abs() < 1e-9);
        assert!((Test::TaggedBw.value(1000, 1, 64_000) - 1000.0).abs() < 1e-9);
        assert!((Test::TaggedRate.value(8, 10, 64_000) - 10.0).abs() < 1e-9);
    }
}
