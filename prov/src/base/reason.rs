// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Reasons of refused calls, and the single log line for each of them.
//!
//! [`crate::base::entry`] runs every call from C under its name and passes each negative result to
//! [`log_refusal`]. Thus no refusal is silent, and inner code only adds facts that the error number
//! does not express: [`because`]. A more detailed line that inner code has logged already is not
//! repeated.
//!
//! Negative results that are no refusals are not logged: `FI_EAGAIN`, an unread error, the end of a
//! wait, and the errors passed to [`expected`]. Queries for extensions are logged at info, since
//! programs can do without these: unknown options, and the calls of [`PROBES`].

use std::cell::Cell;
use std::fmt;

use libfabric_sys as fi;

use crate::base::errno::{self, Errno};
use crate::base::log::{self, Subsys};

/// State of the log line for the current call.
#[derive(Default)]
enum Known {
    #[default]
    Nothing,
    /// Logged, or not wanted.
    Logged,
    /// Reason for an error.
    Reason(Errno, String),
}

/// Calls that query an extension of a provider by its name.
const PROBES: [&str; 2] = ["fi_open_ops", "fi_set_ops"];

thread_local! {
    static KNOWN: Cell<Known> = const { Cell::new(Known::Nothing) };
}

fn take() -> Known {
    // A thread that ends has no reasons any more.
    KNOWN.try_with(Cell::take).unwrap_or_default()
}

fn set(known: Known) {
    let _ = KNOWN.try_with(|place| place.set(known));
}

/// Drops the state of an earlier call, such as a reason for an error from which it recovered.
#[inline]
pub(crate) fn forget() {
    set(Known::Nothing);
}

/// Notes that the line for the current call was logged.
pub(crate) fn logged() {
    set(Known::Logged);
}

/// Returns whether the line for the current call was logged.
pub(crate) fn is_logged() -> bool {
    let known = take();
    let logged = matches!(known, Known::Logged);
    set(known);
    logged
}

/// Records the reason for which the current call is refused with `errno`, and returns `errno`.
#[cold]
pub(crate) fn because(errno: Errno, why: fmt::Arguments<'_>) -> Errno {
    if log::prints_warnings() {
        set(Known::Reason(errno, why.to_string()));
    }
    errno
}

/// Passes on a result. An error equal to `answer` is a regular result of the query and is not
/// logged.
#[inline]
pub(crate) fn expected<T>(answer: Errno, result: Result<T, Errno>) -> Result<T, Errno> {
    if matches!(&result, Err(errno) if *errno == answer) {
        logged();
    }
    result
}

/// Logs at warn the reason for the refusal of the current call.
#[track_caller]
#[cold]
pub(crate) fn warn_about_call(subsys: Subsys, text: fmt::Arguments<'_>) {
    logged();
    log::about_call(fi::FI_LOG_WARN, subsys, text);
}

/// Logs at info the reason for the refusal of the current call.
#[track_caller]
#[cold]
fn info_about_call(subsys: Subsys, text: fmt::Arguments<'_>) {
    logged();
    log::about_call(fi::FI_LOG_INFO, subsys, text);
}

/// Logs that the object does not support a call.
pub(crate) fn log_unsupported(call: &'static str) {
    forget();
    if PROBES.contains(&call) {
        info_about_call(subsys(call), format_args!("{call}: there are no such operations"));
        return forget();
    }
    let why =
        format_args!("this object has no such call, or was opened without the capability for it");
    log_refusal(call, because(fi::FI_ENOSYS, why));
}

/// Returns the text of an error, preceded by the reason if one is recorded for it.
fn text(number: Errno) -> String {
    let text = errno::text(number);
    match take() {
        Known::Reason(of, why) if of == number => format!("{why}: {text}"),
        Known::Nothing | Known::Logged | Known::Reason(..) => text,
    }
}

/// Logs that `call` is refused with `errno`, unless inner code has logged it.
#[cold]
#[inline(never)]
pub(crate) fn log_refusal(call: &str, errno: Errno) {
    let known = take();
    if matches!(known, Known::Logged) || is_answer(errno) {
        return;
    }
    set(known);
    log_line(subsys(call), format_args!("{call}"), errno);
    forget();
}

/// Logs that `call` is refused with `errno`, and the reason recorded for it. A query of an unknown
/// option is at info.
#[track_caller]
#[cold]
pub(crate) fn log_line(subsys: Subsys, call: fmt::Arguments<'_>, errno: Errno) {
    let text = text(errno);
    match errno {
        fi::FI_ENOPROTOOPT => info_about_call(subsys, format_args!("{call}: {text}")),
        _ => warn_about_call(subsys, format_args!("{call}: {text}")),
    }
}

/// Returns whether an error only means that a result is not available, or not yet.
fn is_answer(errno: Errno) -> bool {
    matches!(
        errno,
        fi::FI_EAGAIN | fi::FI_EAVAIL | fi::FI_EINTR | fi::FI_ETIMEDOUT | fi::FI_ECANCELED
    )
}

/// Returns the subsystem of a call, by its name.
fn subsys(call: &str) -> Subsys {
    const OTHERS: [(&str, Subsys); 6] = [
        ("fi_av", Subsys::Av),
        ("fi_mr", Subsys::Mr),
        ("fi_fabric", Subsys::Fabric),
        ("fi_domain", Subsys::Fabric),
        ("fi_eq", Subsys::Fabric),
        ("fi_getinfo", Subsys::Core),
    ];
    let other = OTHERS.iter().find(|(name, _)| call.starts_with(name));
    other.map_or(Subsys::EpCtrl, |(_, subsys)| *subsys)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_for_its_error_and_its_call() {
        set(Known::Reason(fi::FI_EINVAL, "too long".into()));
        assert_eq!(text(fi::FI_EBUSY), "Device or resource busy");
        set(Known::Reason(fi::FI_EINVAL, "too long".into()));
        assert_eq!(text(fi::FI_EINVAL), "too long: Invalid argument");
        assert_eq!(text(fi::FI_EINVAL), "Invalid argument");
        set(Known::Reason(fi::FI_EINVAL, "of an earlier call".into()));
        forget();
        assert_eq!(text(fi::FI_EINVAL), "Invalid argument");
    }

    #[test]
    fn a_line_is_logged_once() {
        let (no, other) = (fi::FI_EOPNOTSUPP, fi::FI_EINVAL);
        assert_eq!(expected::<()>(no, Err(no)), Err(no));
        assert!(is_logged());
        forget();
        assert_eq!(expected::<()>(no, Err(other)), Err(other));
        assert_eq!(expected(no, Ok(1)), Ok(1));
        assert!(!is_logged());
    }

    #[test]
    fn calls_belong_to_subsystems() {
        assert_eq!(subsys("fi_av_insert"), Subsys::Av);
        assert_eq!(subsys("fi_mr_reg"), Subsys::Mr);
        assert_eq!(subsys("fi_sendmsg"), Subsys::EpCtrl);
    }
}
