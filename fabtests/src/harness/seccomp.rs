// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Denial of system calls to a process and all processes it will start, as by the profile of a
//! container. It takes effect at once or by decision of a supervisor.
//!
//! A filter denies with EPERM and stays until the process ends (seccomp(2), seccomp_unotify(2)).
#![expect(unsafe_code, reason = "seccomp has no safe wrapper")]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::{Fail, Outcome};

/// Groups of calls that known profiles withhold, each under one name.
pub const GROUPS: &[(&str, &[libc::c_long])] = &[
    ("process_vm", &[libc::SYS_process_vm_readv, libc::SYS_process_vm_writev]),
    ("pidfd", &[libc::SYS_pidfd_open, libc::SYS_pidfd_getfd, libc::SYS_pidfd_send_signal]),
    ("membarrier", &[libc::SYS_membarrier]),
    ("userfaultfd", &[libc::SYS_userfaultfd]),
    ("ptrace", &[libc::SYS_ptrace]),
    ("memfd", &[libc::SYS_memfd_create]),
    ("epoll", &[libc::SYS_epoll_create1]),
    ("eventfd", &[libc::SYS_eventfd2]),
];

/// Returns the calls of a group.
#[must_use]
pub fn group(name: &str) -> Option<&'static [libc::c_long]> {
    GROUPS.iter().find(|(known, _)| *known == name).map(|(_, calls)| *calls)
}

#[expect(clippy::cast_possible_truncation, reason = "every code of BPF has 16 bits")]
const fn stmt(code: u32, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

#[expect(clippy::cast_possible_truncation, reason = "every code of BPF has 16 bits")]
const fn skip_unless(k: u32, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16, jt: 0, jf, k }
}

/// Returns the instruction that loads the word at an offset of `struct seccomp_data`.
const fn load(at: u32) -> libc::sock_filter {
    stmt(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, at)
}

/// Returns the offset of the lower half of an argument in `struct seccomp_data`.
const fn argument(number: u32) -> u32 {
    16 + 8 * number + if cfg!(target_endian = "little") { 0 } else { 4 }
}

/// Installs a filter with `verdict` for `calls`. All other calls pass, and calls whose first
/// argument is `spared`.
fn install(
    calls: &[libc::c_long],
    spared: Option<u32>,
    verdict: u32,
    flags: libc::c_ulong,
) -> Outcome<libc::c_long> {
    let mut filter = vec![load(0)];
    for &call in calls {
        let call = u32::try_from(call).map_err(Fail::here)?;
        if let Some(spared) = spared {
            filter.push(skip_unless(call, 4));
            filter.push(load(argument(0)));
            filter.push(skip_unless(spared, 1));
            filter.push(stmt(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW));
        } else {
            filter.push(skip_unless(call, 1));
        }
        filter.push(stmt(libc::BPF_RET | libc::BPF_K, verdict));
    }
    filter.push(stmt(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW));
    attach(&mut filter, flags)
}

fn attach(filter: &mut [libc::sock_filter], flags: libc::c_ulong) -> Outcome<libc::c_long> {
    rustix::thread::set_no_new_privs(true)?;
    let prog = libc::sock_fprog {
        len: u16::try_from(filter.len()).map_err(Fail::here)?,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: `prog` and its filter outlive the call, and the kernel copies them.
    let rc = unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const prog)
    };
    if rc >= 0 {
        return Ok(rc);
    }
    let refused = std::io::Error::last_os_error();
    // Valgrind knows only the older call, which affects one thread.
    if refused.raw_os_error() == Some(libc::ENOSYS)
        && flags == libc::SECCOMP_FILTER_FLAG_TSYNC
        && std::fs::read_dir("/proc/self/task")?.count() == 1
    {
        let mode = libc::c_ulong::from(libc::SECCOMP_MODE_FILTER);
        // SAFETY: `prog` and its filter outlive the call, as above.
        let rc = unsafe { libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const prog) };
        if rc == 0 {
            return Ok(0);
        }
    }
    Err(Fail::here(format_args!("seccomp: {refused}")))
}

/// Makes `calls` fail with EPERM from now on, in every thread of this process and in all it starts.
pub fn deny(calls: &[libc::c_long]) -> Outcome {
    refuse(calls, libc::EPERM)
}

/// Makes `calls` fail with `errno`, as [`deny`] does. Systems without such calls return ENOSYS.
pub fn refuse(calls: &[libc::c_long], errno: i32) -> Outcome {
    let verdict = libc::SECCOMP_RET_ERRNO | errno.unsigned_abs();
    install(calls, None, verdict, libc::SECCOMP_FILTER_FLAG_TSYNC)?;
    Ok(())
}

/// Makes `calls` fail as [`deny`] does, except with the id of this process as first argument.
pub fn deny_on_others(calls: &[libc::c_long]) -> Outcome {
    let verdict = libc::SECCOMP_RET_ERRNO | libc::EPERM.unsigned_abs();
    install(calls, Some(std::process::id()), verdict, libc::SECCOMP_FILTER_FLAG_TSYNC)?;
    Ok(())
}

/// Makes each of `calls` end this process by SIGSYS.
pub fn die_in(calls: &[libc::c_long]) -> Outcome {
    install(calls, None, libc::SECCOMP_RET_KILL_PROCESS, libc::SECCOMP_FILTER_FLAG_TSYNC)?;
    Ok(())
}

/// Makes `call` with this third argument fail with `errno`, or end this process by SIGSYS.
pub fn refuse_argument(call: libc::c_long, third: u32, errno: Option<i32>) -> Outcome {
    let verdict = errno.map_or(libc::SECCOMP_RET_KILL_PROCESS, |errno| {
        libc::SECCOMP_RET_ERRNO | errno.unsigned_abs()
    });
    let mut filter = [
        load(0),
        skip_unless(u32::try_from(call).map_err(Fail::here)?, 3),
        load(argument(2)),
        skip_unless(third, 1),
        stmt(libc::BPF_RET | libc::BPF_K, verdict),
        stmt(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
    ];
    attach(&mut filter, libc::SECCOMP_FILTER_FLAG_TSYNC)?;
    Ok(())
}

/// Makes fcntl(2) refuse seals with a bit of `seals`, as older kernels do, for this process and its
/// children.
pub fn refuse_seals(seals: i32) -> Outcome {
    let unless_set = |bits| libc::sock_filter {
        jf: 1,
        ..stmt(libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K, bits)
    };
    let verdict = libc::SECCOMP_RET_ERRNO | libc::EINVAL.unsigned_abs();
    let mut filter = [
        load(0),
        skip_unless(u32::try_from(libc::SYS_fcntl).map_err(Fail::here)?, 5),
        load(argument(1)),
        skip_unless(libc::F_ADD_SEALS.unsigned_abs(), 3),
        load(argument(2)),
        unless_set(seals.unsigned_abs()),
        stmt(libc::BPF_RET | libc::BPF_K, verdict),
        stmt(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
    ];
    attach(&mut filter, libc::SECCOMP_FILTER_FLAG_TSYNC)?;
    Ok(())
}

/// Makes each of `calls` wait for permission from the returned object, in this thread and all it
/// starts.
pub fn supervise(calls: &[libc::c_long]) -> Outcome<Questions> {
    let fd =
        install(calls, None, libc::SECCOMP_RET_USER_NOTIF, libc::SECCOMP_FILTER_FLAG_NEW_LISTENER)?;
    let fd = i32::try_from(fd).map_err(Fail::here)?;
    // SAFETY: with NEW_LISTENER the call returns a new descriptor, owned by this call alone.
    Ok(Questions(unsafe { OwnedFd::from_raw_fd(fd) }))
}

/// Supervisor of calls that wait for permission. After it is dropped, the calls fail with ENOSYS.
#[derive(Debug)]
pub struct Questions(OwnedFd);

impl AsFd for Questions {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Questions {
    /// Waits for one call and lets it pass or fail with EPERM. A caller that has died needs no
    /// reply.
    pub fn answer(&self, permitted: bool) -> Outcome {
        // SAFETY: all fields are integers, for which zero is valid; the kernel requires zeroes.
        let mut asked: libc::seccomp_notif = unsafe { std::mem::zeroed() };
        // SAFETY: this request fills this structure, which outlives the call.
        let rc = unsafe {
            libc::ioctl(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut asked)
        };
        if rc < 0 {
            return gone_or_failed();
        }
        let mut answer = libc::seccomp_notif_resp {
            id: asked.id,
            val: 0,
            error: if permitted { 0 } else { -libc::EPERM },
            flags: u32::from(permitted),
        };
        // SAFETY: this request reads this structure, which outlives the call.
        let rc = unsafe {
            libc::ioctl(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw mut answer)
        };
        if rc < 0 { gone_or_failed() } else { Ok(()) }
    }
}

// The only flag of a response. The field is narrower than the constant of libc.
const _: () = assert!(libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE == 1);

fn gone_or_failed() -> Outcome {
    let error = std::io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::EINTR) => Ok(()),
        _ => Err(error.into()),
    }
}
