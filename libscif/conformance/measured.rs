// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Identification of the device, and comparison of its answers with measured ones. A driver of
//! mainline Linux must answer like one of 4.19, which was measured on one node without hardware.
//! `libscifdev.so`, which stands in for a driver, must answer likewise, except for the driver's
//! defects, where it has its own answer with a reason.
//!
//! Not about the requests (`driver_rows`).

use std::fmt;
use std::os::unix::net::UnixDatagram;
use std::sync::OnceLock;
use std::time::Duration;

use libc::EINVAL;
use scif_fabtests::harness::process::Process;

use crate::ioctl::{self, GET_VERSION};
use crate::rig::set_env;

/// Kind of a device.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum DriverKind {
    /// A driver of mainline Linux.
    Mainline,
    /// Driver of MPSS, which was not measured.
    Mpss,
    /// `libscifdev.so`, as mainline's driver, with its traps, then as the driver of MPSS 3.
    StandIn,
    TrappedStandIn,
    OldStandIn,
}

const ALL: [DriverKind; 5] = [
    DriverKind::Mainline,
    DriverKind::Mpss,
    DriverKind::StandIn,
    DriverKind::TrappedStandIn,
    DriverKind::OldStandIn,
];

impl DriverKind {
    pub(crate) fn is_driver(self) -> bool {
        matches!(self, DriverKind::Mainline | DriverKind::Mpss)
    }
}

impl fmt::Display for DriverKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DriverKind::Mainline => "a driver of mainline Linux",
            DriverKind::Mpss => "a driver of MPSS",
            DriverKind::StandIn => "libscifdev.so, which stands in for mainline's driver",
            DriverKind::TrappedStandIn => {
                "libscifdev.so, which stands in for mainline's driver with its traps"
            }
            DriverKind::OldStandIn => "libscifdev.so, which stands in for the driver of MPSS 3",
        })
    }
}

/// Kind of the device, determined once, before there are other threads.
static DRIVER_KIND: OnceLock<Result<(DriverKind, bool), i32>> = OnceLock::new();
/// Marker in place of a device's kind, before the errno of open(2).
const NO_DEVICE: u8 = u8::MAX;

/// Whether the settings give a stand-in the traps of mainline's driver.
pub(crate) fn is_trapped() -> bool {
    std::env::var("SCIF_DEVICE_TRAPS").is_ok_and(|traps| traps == "1")
}

/// Identifies the device in a process of its own, since a process that has opened it stays a node.
/// A driver is a character device. A stand-in gives sockets, whatever `stat` returns for the name,
/// and wherever it was loaded from.
fn find_out() -> Result<(DriverKind, bool), i32> {
    let (mine, theirs) = UnixDatagram::pair().unwrap();
    let asked = Process::start(|| {
        set_env("SCIF_DOMAIN", &format!("conformance-{}", std::process::id()));
        let fd = match ioctl::try_open(0) {
            Ok(fd) => fd,
            Err(errno) => {
                mine.send(&[NO_DEVICE, errno.try_into().unwrap()]).unwrap();
                return;
            }
        };
        let version = ioctl::raw(fd, GET_VERSION, 0);
        let driver_kind = match (ioctl::device_number(fd), version) {
            (None, Ok(1)) => DriverKind::OldStandIn,
            (None, _) if is_trapped() => DriverKind::TrappedStandIn,
            (None, _) => DriverKind::StandIn,
            (Some(_), Ok(_)) => DriverKind::Mpss,
            (Some(_), Err(errno)) => {
                assert_eq!(errno, EINVAL, "no driver of SCIF");
                ioctl::bind(fd);
                // MPSS 4 is documented to refuse a backlog of 0.
                match ioctl::listen(fd, 0) {
                    Err(EINVAL) => DriverKind::Mpss,
                    _ => DriverKind::Mainline,
                }
            }
        };
        let online = ioctl::nodes(fd).is_ok_and(|nodes| nodes.online > 0);
        let place = ALL.iter().position(|&one| one == driver_kind).unwrap();
        mine.send(&[place as u8, u8::from(online)]).unwrap();
    });
    asked.wait();
    theirs.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    let mut said = [0; 2];
    theirs.recv(&mut said).unwrap();
    match said {
        [NO_DEVICE, errno] => Err(errno.into()),
        [place, online] => Ok((ALL[usize::from(place)], online != 0)),
    }
}

/// Returns the errno of open(2) on the device, if none is usable.
pub(crate) fn no_device() -> Option<i32> {
    DRIVER_KIND.get_or_init(find_out).err()
}

/// Returns the kind of the device.
pub(crate) fn driver_kind() -> DriverKind {
    DRIVER_KIND.get_or_init(find_out).unwrap().0
}

/// Whether a node is online at the device: mainline's driver opens on every machine, but cannot
/// connect without a card.
pub(crate) fn is_online() -> bool {
    DRIVER_KIND.get_or_init(find_out).unwrap().1
}

/// Answer of a row: its request, and the result of mainline's driver.
pub(crate) struct RowAnswer {
    pub(crate) subject: &'static str,
    pub(crate) driver: &'static str,
    /// Result of the stand-in, if it differs.
    pub(crate) instead: Option<Instead>,
}

/// Result of the stand-in, and its reason.
pub(crate) struct Instead {
    pub(crate) said: &'static str,
    pub(crate) why: &'static str,
    of: InsteadOf,
}

/// Kinds of the stand-in that differ from the driver.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum InsteadOf {
    All,
    WithoutTraps,
    Mpss3,
}

/// Makes an answer in which the stand-in equals the driver.
pub(crate) const fn same(subject: &'static str, driver: &'static str) -> RowAnswer {
    RowAnswer { subject, driver, instead: None }
}

const fn instead(
    subject: &'static str,
    driver: &'static str,
    said: &'static str,
    why: &'static str,
    of: InsteadOf,
) -> RowAnswer {
    let instead = Some(Instead { said, why, of });
    RowAnswer { subject, driver, instead }
}

/// Makes an answer in which the stand-in differs.
pub(crate) const fn other(
    subject: &'static str,
    driver: &'static str,
    said: &'static str,
    why: &'static str,
) -> RowAnswer {
    instead(subject, driver, said, why, InsteadOf::All)
}

/// Makes an answer in which the stand-in differs unless it has the traps of the driver.
pub(crate) const fn other_without_traps(
    subject: &'static str,
    driver: &'static str,
    said: &'static str,
    why: &'static str,
) -> RowAnswer {
    instead(subject, driver, said, why, InsteadOf::WithoutTraps)
}

/// Makes an answer in which the stand-in differs only for the device of MPSS 3.
pub(crate) const fn other_of_mpss3(
    subject: &'static str,
    driver: &'static str,
    said: &'static str,
    why: &'static str,
) -> RowAnswer {
    instead(subject, driver, said, why, InsteadOf::Mpss3)
}

impl RowAnswer {
    /// Returns the answer of the stand-in with its reason, if it differs from the driver's.
    fn instead(&self, driver_kind: DriverKind) -> Option<&Instead> {
        self.instead.as_ref().filter(|instead| match driver_kind {
            DriverKind::Mainline | DriverKind::Mpss => false,
            DriverKind::StandIn => instead.of != InsteadOf::Mpss3,
            DriverKind::TrappedStandIn => instead.of == InsteadOf::All,
            DriverKind::OldStandIn => true,
        })
    }

    fn expected(&self, driver_kind: DriverKind) -> &'static str {
        self.instead(driver_kind).map_or(self.driver, |instead| instead.said)
    }
}

/// Row of measurements: its name, its requests, and the answers in their order.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) calls: fn(DriverKind) -> Vec<String>,
    pub(crate) answers: &'static [RowAnswer],
}

/// Makes a row of preparations, and of requests with their answers.
macro_rules! row {
    ($name:literal, |$kind:tt| {$($setup:tt)*} $($request:expr => $answer:expr),* $(,)?) => {
        Row {
            name: $name,
            calls: |$kind| {
                $($setup)*
                vec![$($request),*]
            },
            answers: &[$($answer),*],
        }
    };
}
pub(crate) use row;

impl Row {
    /// Returns the name of its case.
    pub(crate) fn full_name(&self) -> String {
        format!("driver/{}", self.name)
    }

    /// Whether all expected answers are the driver's own.
    pub(crate) fn is_drivers_own(&self, driver_kind: DriverKind) -> bool {
        self.answers.iter().all(|answer| answer.instead(driver_kind).is_none())
    }

    /// Returns the answers in which the stand-in differs from the driver.
    pub(crate) fn otherwise(&self) -> impl Iterator<Item = (&RowAnswer, &Instead)> {
        self.answers.iter().filter_map(|answer| Some((answer, answer.instead.as_ref()?)))
    }

    /// Compares the results with the expected answers. Returns the differences.
    pub(crate) fn judge(&self, heard: &[String], driver_kind: DriverKind) -> Vec<String> {
        if heard.len() != self.answers.len() {
            return vec![format!("{} answers to {} questions", heard.len(), self.answers.len())];
        }
        let pairs = self.answers.iter().zip(heard);
        pairs
            .filter(|(answer, heard)| answer.expected(driver_kind) != heard.as_str())
            .map(|(answer, heard)| {
                let own = match answer.instead(driver_kind) {
                    Some(instead) => format!("{}, for: {}", instead.said, instead.why),
                    None => format!("{}, as mainline's driver of 4.19", answer.driver),
                };
                format!("{}: {heard} instead of {own}", answer.subject)
            })
            .collect()
    }
}

/// Errors by name, limited to the ones that a driver returned.
const ERRORS: [(i32, &str); 17] = [
    (libc::EPERM, "EPERM"),
    (libc::ENOENT, "ENOENT"),
    (libc::ENXIO, "ENXIO"),
    (libc::EAGAIN, "EAGAIN"),
    (libc::ENOMEM, "ENOMEM"),
    (libc::EACCES, "EACCES"),
    (libc::EFAULT, "EFAULT"),
    (libc::ENODEV, "ENODEV"),
    (libc::EINVAL, "EINVAL"),
    (libc::ENOTTY, "ENOTTY"),
    (libc::EADDRINUSE, "EADDRINUSE"),
    (libc::EOPNOTSUPP, "EOPNOTSUPP"),
    (libc::ECONNRESET, "ECONNRESET"),
    (libc::EISCONN, "EISCONN"),
    (libc::ENOTCONN, "ENOTCONN"),
    (libc::ECONNREFUSED, "ECONNREFUSED"),
    (libc::EINPROGRESS, "EINPROGRESS"),
];

/// Formats an answer for the comparison: its value, or its error's name.
pub(crate) fn answer_text<T: ToString>(answer: Result<T, i32>) -> String {
    match answer {
        Ok(value) => value.to_string(),
        Err(errno) => ERRORS
            .iter()
            .find(|(number, _)| *number == errno)
            .map_or_else(|| format!("errno {errno}"), |(_, name)| (*name).to_owned()),
    }
}

/// Formats an answer without a value: "ok", or its error's name.
pub(crate) fn done<T>(answer: Result<T, i32>) -> String {
    answer_text(answer.map(|_| "ok"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: Row = Row {
        name: "a_row",
        calls: |_| Vec::new(),
        answers: &[
            same("of both", "ENXIO"),
            other("of a defect", "0", "EADDRINUSE", "a defect"),
            other_of_mpss3("of an age", "EINVAL", "1", "of MPSS 3"),
            other_without_traps("of a trap", "0", "ENXIO", "a trap"),
        ],
    };

    fn wrong(heard: [&str; 4], driver_kind: DriverKind) -> usize {
        ROW.judge(&heard.map(str::to_owned), driver_kind).len()
    }

    #[test]
    fn each_is_held_to_its_own_answers() {
        let of = [
            (DriverKind::Mainline, ["ENXIO", "0", "EINVAL", "0"]),
            (DriverKind::StandIn, ["ENXIO", "EADDRINUSE", "EINVAL", "ENXIO"]),
            (DriverKind::TrappedStandIn, ["ENXIO", "EADDRINUSE", "EINVAL", "0"]),
            (DriverKind::OldStandIn, ["ENXIO", "EADDRINUSE", "1", "ENXIO"]),
        ];
        for (driver_kind, right) in of {
            for (other, heard) in of {
                let same = right.iter().zip(heard).filter(|(one, other)| **one == *other);
                assert_eq!(
                    wrong(heard, driver_kind),
                    4 - same.count(),
                    "{driver_kind:?} as {other:?}"
                );
            }
        }
        assert_eq!(wrong(["EPERM", "0", "EINVAL", "0"], DriverKind::Mainline), 1);
        assert_eq!(wrong(["EPERM", "EADDRINUSE", "EINVAL", "ENXIO"], DriverKind::StandIn), 1);
    }

    #[test]
    fn a_repaired_driver_is_noticed() {
        let heard = ["ENXIO", "EADDRINUSE", "EINVAL", "0"].map(str::to_owned);
        assert_eq!(
            ROW.judge(&heard, DriverKind::Mainline),
            ["of a defect: EADDRINUSE instead of 0, as mainline's driver of 4.19"]
        );
        let heard = ["ENXIO", "0", "EINVAL", "ENXIO"].map(str::to_owned);
        assert_eq!(
            ROW.judge(&heard, DriverKind::StandIn),
            ["of a defect: 0 instead of EADDRINUSE, for: a defect"]
        );
    }

    #[test]
    fn an_answer_too_many_or_too_few_is_wrong() {
        assert_eq!(ROW.judge(&[], DriverKind::Mainline), ["0 answers to 4 questions"]);
        let heard = ["ENXIO", "0", "EINVAL", "0", "0"].map(str::to_owned);
        assert_eq!(ROW.judge(&heard, DriverKind::Mainline), ["5 answers to 4 questions"]);
    }

    #[test]
    fn rows_count_for_their_driver() {
        assert!(ROW.is_drivers_own(DriverKind::Mainline));
        assert!(!ROW.is_drivers_own(DriverKind::StandIn));
        const OF_AN_AGE: &[RowAnswer] = &[other_of_mpss3("of an age", "EINVAL", "1", "of MPSS 3")];
        let row = Row { answers: OF_AN_AGE, ..ROW };
        assert!(
            row.is_drivers_own(DriverKind::StandIn) && !row.is_drivers_own(DriverKind::OldStandIn)
        );
    }

    #[test]
    fn answers_have_names() {
        assert_eq!(answer_text(Ok(4095)), "4095");
        assert_eq!(answer_text::<i32>(Err(libc::ENXIO)), "ENXIO");
        assert_eq!(answer_text::<i32>(Err(0)), "errno 0");
        assert_eq!(done(Ok(4095)), "ok");
        for (i, (number, _)) in ERRORS.iter().enumerate() {
            assert!(!ERRORS[..i].iter().any(|(other, _)| other == number));
        }
    }
}
