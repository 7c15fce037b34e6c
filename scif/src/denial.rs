// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Explanation of a denied `process_vm_readv(2)` or `process_vm_writev(2)`: the cause, as far as
//! this process can see it, and the remedy.
//!
//! Not about: the consequence, which depends on the caller.

use std::fmt;

use rustix::io::Errno;

use crate::logging::OnceEach;
use crate::sys::{process, process_vm};

/// Cause for which this process may not copy from or to the memory of another one.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum DenialCause {
    /// The call is denied for the caller's own memory too, by a seccomp filter.
    Seccomp,
    /// The process id of the peer is unknown: its pid namespace is not visible from this one.
    PidNamespace,
    /// The peer is in another user namespace.
    UserNamespace,
    /// The peer runs as this user, different from ours. No copy is attempted.
    OtherUser(u32),
    /// `/proc` shows this other user as the owner of the peer, as for processes that are not
    /// dumpable.
    NotDumpable(u32),
    /// Yama restricts it, with this value of `kernel.yama.ptrace_scope`.
    Yama(u32),
    /// The memory of the process with that id does not hold the nonce that the peer has sent.
    NotThePeer,
    /// None of the others applies.
    Unknown,
}

/// A denied direct copy between this process and a peer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Denial {
    pid: i32,
    errno: Errno,
    cause: DenialCause,
}

impl Denial {
    /// Returns an explanation of error `errno` of a copy from or to process `pid`.
    pub(crate) fn explain(pid: i32, errno: Errno) -> Denial {
        let (errno, cause) = match process_vm::denied_to_all() {
            Some(errno) => (errno, DenialCause::Seccomp),
            None if pid <= 0 => (Errno::SRCH, DenialCause::PidNamespace),
            None => (errno, cause_for(pid, errno)),
        };
        Denial { pid, errno, cause }
    }

    /// Returns an explanation of a denied copy from process `pid`, whose error is not known.
    #[must_use]
    pub fn of_copy(pid: i32) -> Denial {
        Denial::explain(pid, Errno::PERM)
    }

    /// Returns the denial of copies between processes of two users, which are not attempted.
    pub(crate) fn of_user(pid: i32, uid: u32) -> Denial {
        Denial { pid, errno: Errno::PERM, cause: DenialCause::OtherUser(uid) }
    }

    /// Returns the cause, for logging each cause once.
    #[must_use]
    pub fn cause(&self) -> DenialCause {
        self.cause
    }
}

/// Returns the method of copies between this process and peers of its user, as far as this process
/// alone can determine it. Returns the reason if they will be denied.
pub(crate) fn prospect() -> Result<String, String> {
    if let Some(errno) = process_vm::denied_to_all() {
        return Err(Denial { pid: process::pid(), errno, cause: DenialCause::Seccomp }.to_string());
    }
    match process::yama_scope() {
        0 => Ok("directly, by process_vm_readv".to_owned()),
        1 => Ok(
            "directly, by process_vm_readv, where the peer permits it (kernel.yama.ptrace_scope is \
             1, FI_SCIF_PTRACER)".to_owned(),
        ),
        scope => Ok(format!(
            "directly, by process_vm_readv, with CAP_SYS_PTRACE only (kernel.yama.ptrace_scope is \
             {scope})"
        )),
    }
}

/// Logs, once for each cause, that this process cannot reach pages of a window that were not moved.
pub fn warn_of_window(pid: i32) {
    static SAID: OnceEach<DenialCause> = OnceEach::new(16);
    let denial = Denial::of_copy(pid);
    if SAID.first(denial.cause()) {
        log::warn!(
            "RMA on a window of process {pid} failed with EIO: the window's pages are not in \
             shared memory, and direct copies with the process are denied. {denial}"
        );
    }
}

fn cause_for(pid: i32, errno: Errno) -> DenialCause {
    if !matches!(errno, Errno::PERM | Errno::ACCESS) {
        return DenialCause::NotThePeer;
    }
    if process::in_other_user_namespace(pid) {
        return DenialCause::UserNamespace;
    }
    match (process::owner(pid), process::yama_scope()) {
        (Some(uid), _) if uid != process::uid() => DenialCause::NotDumpable(uid),
        (_, scope @ 1..) => DenialCause::Yama(scope),
        _ => DenialCause::Unknown,
    }
}

impl fmt::Display for Denial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let own = process::uid();
        if let DenialCause::OtherUser(uid) = self.cause {
            return write!(
                f,
                "Process {} belongs to user {uid}, this one to user {own}: processes of different \
                 users never copy from memory to memory; run both as one user",
                self.pid
            );
        }
        write!(f, "process_vm_readv of process {}: {}; ", self.pid, self.errno)?;
        match self.cause {
            DenialCause::Seccomp => f.write_str(
                "a seccomp filter denies the call to this process: start the container with \
                 --cap-add=SYS_PTRACE (Docker, Podman), or with a seccomp profile that permits \
                 process_vm_readv and process_vm_writev",
            ),
            DenialCause::PidNamespace => f.write_str(
                "the process is in a pid namespace that is not visible here: let the containers \
                 share one (docker run --pid=host, or --pid=container:NAME)",
            ),
            DenialCause::UserNamespace => f.write_str(
                "the process is in another user namespace: start both processes in one (Docker and \
                 Podman: one container, or --userns=host)",
            ),
            DenialCause::OtherUser(uid) | DenialCause::NotDumpable(uid) => write!(
                f,
                "the process shows as one of user {uid}, this one is of user {own}: it belongs to \
                 another user, or is not dumpable (it has changed its user, or prctl \
                 PR_SET_DUMPABLE); run both as one user, or give CAP_SYS_PTRACE"
            ),
            DenialCause::Yama(1) => f.write_str(
                "/proc/sys/kernel/yama/ptrace_scope is 1 and the process has not permitted it: \
                 leave FI_SCIF_PTRACER and SCIF_PTRACER at 1 in every process, or set \
                 kernel.yama.ptrace_scope to 0, or give CAP_SYS_PTRACE (docker run \
                 --cap-add=SYS_PTRACE)",
            ),
            DenialCause::Yama(2) => f.write_str(
                "/proc/sys/kernel/yama/ptrace_scope is 2: set kernel.yama.ptrace_scope to 1 or 0, \
                 or give CAP_SYS_PTRACE (docker run --cap-add=SYS_PTRACE)",
            ),
            DenialCause::Yama(scope) => write!(
                f,
                "/proc/sys/kernel/yama/ptrace_scope is {scope}, which denies it to everybody until \
                 the next boot: boot with kernel.yama.ptrace_scope at 1 or 0",
            ),
            DenialCause::NotThePeer => f.write_str(
                "the process is not the one that opened the connection: it runs another program \
                 now, or /proc and the socket disagree about its number",
            ),
            DenialCause::Unknown => f.write_str(
                "a security module, or a process that is not dumpable (prctl PR_SET_DUMPABLE), \
                 denies it: give CAP_SYS_PTRACE (docker run --cap-add=SYS_PTRACE)",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_has_its_remedy() {
        let rows: &[(DenialCause, &[&str])] = &[
            (DenialCause::Seccomp, &["seccomp", "--cap-add=SYS_PTRACE"]),
            (DenialCause::PidNamespace, &["pid namespace", "--pid=host"]),
            (DenialCause::UserNamespace, &["user namespace"]),
            (DenialCause::NotDumpable(77), &["user 77", "CAP_SYS_PTRACE"]),
            (DenialCause::Yama(1), &["/proc/sys/kernel/yama/ptrace_scope is 1", "SCIF_PTRACER"]),
            (DenialCause::Yama(2), &["/proc/sys/kernel/yama/ptrace_scope is 2", "CAP_SYS_PTRACE"]),
            (DenialCause::Yama(3), &["/proc/sys/kernel/yama/ptrace_scope is 3", "boot"]),
            (DenialCause::NotThePeer, &["another program"]),
            (DenialCause::Unknown, &["CAP_SYS_PTRACE"]),
        ];
        for (cause, words) in rows {
            let denial = Denial { pid: 4711, errno: Errno::PERM, cause: *cause };
            let text = denial.to_string();
            assert!(text.starts_with("process_vm_readv of process 4711: Operation not permitted"));
            assert!(words.iter().all(|word| text.contains(word)), "{cause:?}: {text}");
        }
    }

    #[test]
    fn between_users_nothing_is_tried() {
        let text = Denial::of_user(5, 77).to_string();
        assert!(text.contains("user 77") && !text.contains("process_vm_readv"), "{text}");
    }

    #[test]
    fn a_process_that_is_not_visible_is_in_another_namespace() {
        assert_eq!(Denial::explain(0, Errno::SRCH).cause(), DenialCause::PidNamespace);
        let me = process::pid();
        assert_eq!(Denial::explain(me, Errno::FAULT).cause(), DenialCause::NotThePeer);
    }
}
