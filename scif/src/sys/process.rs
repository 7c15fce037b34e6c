// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Processes, this one and others, as the kernel describes them: identity, start time, state,
//! rights, limits, and the identity of this host. See `proc(5)`, `prctl(2)`, `getrlimit(2)`.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::{fmt, fs};

use rustix::io::Errno;
use rustix::process::{PTracer, Resource, Rlimit};

use super::errno::keep_errno;

/// State of a process from `/proc/<pid>/stat`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Stat {
    /// Start time in clock ticks after boot. Together with the pid it identifies one process
    /// permanently.
    pub start: u64,
    /// Whether the process has ended, even if its memory is not freed or it is not reaped.
    pub ended: bool,
}

/// Visibility and state of a process id.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ProcessState {
    Seen(Stat),
    /// No such process.
    Gone,
    /// Not visible to this process (no /proc, hidepid).
    Hidden,
}

/// Process id as log lines name the process. The kernel reports 0 for a process of another pid
/// namespace.
#[derive(Clone, Copy, Debug)]
pub struct ShownPid(pub i32);

impl fmt::Display for ShownPid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => f.write_str("a process of another pid namespace"),
            pid => write!(f, "process {pid}"),
        }
    }
}

pub fn pid() -> i32 {
    rustix::process::getpid().as_raw_pid()
}

/// Returns the user of a process, if it is visible.
pub fn owner(pid: i32) -> Option<u32> {
    rustix::fs::stat(format!("/proc/{pid}")).ok().map(|stat| stat.st_uid)
}

/// Whether a process is known to be in another user namespace than this one.
pub(crate) fn in_other_user_namespace(pid: i32) -> bool {
    let of = |pid: &dyn fmt::Display| file_id(Path::new(&format!("/proc/{pid}/ns/user")));
    matches!((of(&"self"), of(&pid)), (Ok(ours), Ok(theirs)) if ours != theirs)
}

pub fn uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Returns the name of this host, for lines of the log.
#[must_use]
pub fn host_name() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() { "this host".to_owned() } else { name.to_owned() }
}

/// Whether this thread has CAP_SYS_ADMIN.
pub fn may_administrate() -> bool {
    rustix::thread::capabilities(None)
        .is_ok_and(|sets| sets.effective.contains(rustix::thread::CapabilitySet::SYS_ADMIN))
}

/// Ends this process as SIGKILL does.
pub fn kill_self() {
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
}

/// Kills the process group that the process `leader` has made.
pub fn kill_group(leader: u32) {
    if let Some(group) = rustix::process::Pid::from_raw(leader as i32) {
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
}

/// Returns the 8 bytes at `addr` of this process, read through the kernel: an unmapped address
/// causes no fault.
pub(crate) fn own_word(addr: u64) -> Option<u64> {
    let mut word = [0; 8];
    keep_errno(|| {
        let memory = fs::File::open("/proc/self/mem").ok()?;
        memory.read_exact_at(&mut word, addr).ok()
    })?;
    Some(u64::from_ne_bytes(word))
}

/// Returns the errno of a libc call that has just failed on this thread.
pub(crate) fn last_errno() -> Errno {
    std::io::Error::last_os_error().raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error)
}

/// Returns the state of a process. A pid that cannot exist, as a peer may have stored it, counts as
/// ended.
pub fn state_of(pid: i32) -> ProcessState {
    if pid <= 0 {
        return ProcessState::Gone;
    }
    match keep_errno(|| fs::read(format!("/proc/{pid}/stat"))) {
        Ok(text) => parse_stat(&text).map_or(ProcessState::Hidden, ProcessState::Seen),
        Err(e) if e.raw_os_error() == Some(Errno::SRCH.raw_os_error()) => ProcessState::Gone,
        // With hidepid or without /proc the file is missing for a running process as well; a null
        // signal distinguishes the cases.
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            match rustix::process::Pid::from_raw(pid).map(rustix::process::test_kill_process) {
                Some(Err(Errno::SRCH)) => ProcessState::Gone,
                _ => ProcessState::Hidden,
            }
        }
        Err(_) => ProcessState::Hidden,
    }
}

/// Flag of a task that exits (`include/linux/sched.h`). The kernel sets it before it frees the
/// memory of the process and closes its sockets, which takes 20 ms and more per 100 MiB.
const PF_EXITING: u64 = 4;

fn parse_stat(text: &[u8]) -> Option<Stat> {
    // The command in parentheses may hold anything, so fields count from the last one: state is the
    // first after it (field 3), flags field 9, num_threads field 20, starttime field 22.
    let after = text.iter().rposition(|&b| b == b')')? + 1;
    let mut fields = std::str::from_utf8(text.get(after..)?).ok()?.split_ascii_whitespace();
    let state = fields.next()?;
    let flags: u64 = fields.nth(5)?.parse().ok()?;
    let threads: u64 = fields.nth(10)?.parse().ok()?;
    let start: u64 = fields.nth(1)?.parse().ok()?;
    // State Z alone is no proof: the main thread may have ended while others run, and `num_threads`
    // counts these. With one thread left, an exiting process executes none of its instructions.
    let ending = state == "Z" || flags & PF_EXITING != 0;
    let ended = matches!(state, "X" | "x") || (ending && threads <= 1);
    Some(Stat { start, ended })
}

/// Returns `/proc/sys/kernel/yama/ptrace_scope`, the restriction on reading other processes'
/// memory; 0 without Yama.
pub fn yama_scope() -> u32 {
    keep_errno(|| fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope"))
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(0)
}

/// Permits every process that passes the usual checks (same user) to read our memory, independent
/// of Yama.
pub fn allow_any_ptracer() -> Result<(), Errno> {
    rustix::process::set_ptracer(PTracer::Any)
}

/// Raises the soft limit of open descriptors to the hard one; returns (before, after) if it
/// changed.
pub(crate) fn raise_nofile() -> Option<(u64, u64)> {
    let Rlimit { current, maximum } = rustix::process::getrlimit(Resource::Nofile);
    let soft = current?;
    let hard = maximum.unwrap_or(1 << 20);
    if soft >= hard {
        return None;
    }
    let raised = Rlimit { current: Some(hard), maximum };
    rustix::process::setrlimit(Resource::Nofile, raised).ok().map(|()| (soft, hard))
}

/// Returns the maximum number of bytes of memory for this process: the least of the host's, of its
/// control groups' limits, and of RLIMIT_AS and RLIMIT_DATA.
#[must_use]
pub fn memory_limit() -> u64 {
    let info = rustix::system::sysinfo();
    let host = info.totalram.saturating_mul(u64::from(info.mem_unit).max(1));
    let limits =
        [Resource::As, Resource::Data].map(|resource| rustix::process::getrlimit(resource).current);
    limits.into_iter().flatten().chain(super::cgroup::memory_limit()).fold(host, u64::min)
}

/// Sets the soft limit of open descriptors; returns the old one.
#[cfg(any(test, feature = "testing"))]
pub fn limit_nofile(limit: u64) -> u64 {
    let before = rustix::process::getrlimit(Resource::Nofile);
    let limited = Rlimit { current: Some(limit), ..before };
    rustix::process::setrlimit(Resource::Nofile, limited).expect("a lower limit");
    before.current.expect("a limit")
}

/// Returns the soft limit of open descriptors.
pub(crate) fn nofile() -> u64 {
    rustix::process::getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Returns the number of bytes that this process may lock, from RLIMIT_MEMLOCK; `None` without
/// limit, as with CAP_IPC_LOCK.
pub fn lockable() -> Option<u64> {
    let free = rustix::thread::capabilities(None)
        .is_ok_and(|sets| sets.effective.contains(rustix::thread::CapabilitySet::IPC_LOCK));
    rustix::process::getrlimit(Resource::Memlock).current.filter(|_| !free)
}

/// Whether fewer than `spare` descriptor numbers may be free. The kernel assigns the lowest free
/// number, so a low recent descriptor proves enough of them; otherwise a fresh one is tried.
pub fn descriptors_short(recent: impl AsFd, spare: u64) -> bool {
    let limit = nofile();
    let beyond = |fd: BorrowedFd<'_>| u64::from(fd.as_raw_fd().unsigned_abs()) + spare >= limit;
    beyond(recent.as_fd())
        && rustix::io::fcntl_dupfd_cloexec(recent, 0).map_or(true, |fresh| beyond(fresh.as_fd()))
}

/// Returns bytes that identify this boot of this host: boot id and machine id, as far as they are
/// readable.
pub(crate) fn host_ids() -> Vec<u8> {
    let mut ids = Vec::new();
    for path in ["/proc/sys/kernel/random/boot_id", "/etc/machine-id"] {
        ids.extend(keep_errno(|| fs::read(path)).unwrap_or_default());
        ids.push(0);
    }
    ids
}

/// Returns device and inode.
pub(crate) fn file_id(path: &Path) -> Result<(u64, u64), Errno> {
    let stat = rustix::fs::stat(path)?;
    #[expect(clippy::useless_conversion, reason = "narrower on some architectures")]
    Ok((u64::from(stat.st_dev), u64::from(stat.st_ino)))
}

/// Returns device and inode of the network namespace; zeros if unknown. Kernels in user space
/// (gVisor) present a different plain file to each process; only a file of nsfs stands for a
/// namespace (namespaces(7)).
pub(crate) fn network_namespace() -> (u64, u64) {
    const NSFS_MAGIC: u64 = 0x6e73_6673;
    let path = Path::new("/proc/self/ns/net");
    match rustix::fs::statfs(path) {
        Ok(stat) if u64::try_from(stat.f_type) == Ok(NSFS_MAGIC) => file_id(path).unwrap_or((0, 0)),
        _ => (0, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_of_unmapped_words_do_not_fault() {
        let word = Box::new(0x0123_4567_89ab_cdef_u64);
        let addr = (&raw const *word).expose_provenance() as u64;
        assert_eq!(own_word(addr), Some(*word));
        assert_eq!(own_word(16), None);
        assert_eq!(own_word(u64::MAX - 3), None);
    }

    #[test]
    fn unused_process_ids_count_as_ended() {
        for pid in [0, -1, -5, i32::MIN] {
            assert_eq!(state_of(pid), ProcessState::Gone, "{pid}");
        }
        assert!(matches!(state_of(pid()), ProcessState::Seen(_)));
    }

    #[test]
    fn the_network_namespace_is_that_of_every_process_in_it() {
        let mut stat = std::process::Command::new("stat");
        stat.args(["-L", "-c", "%d %i", "/proc/self/ns/net"]).stdout(std::process::Stdio::piped());
        let seen = crate::sys::children::spawn(&mut stat).wait_with_output().unwrap();
        let (device, inode) = network_namespace();
        if (device, inode) != (0, 0) {
            assert_eq!(String::from_utf8_lossy(&seen.stdout), format!("{device} {inode}\n"));
        }
    }

    #[test]
    fn own_start_time_is_stable() {
        let ProcessState::Seen(a) = state_of(pid()) else { panic!("cannot see ourselves") };
        assert!(!a.ended && a.start > 0);
        assert_eq!(state_of(pid()), ProcessState::Seen(a));
    }

    #[test]
    fn stat_with_a_hostile_name_is_parsed() {
        let tail = "4 4 4 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 1 0 777 0 0";
        let live = format!("12 (a) Z (b)) S {tail}\n");
        assert_eq!(parse_stat(live.as_bytes()), Some(Stat { start: 777, ended: false }));
        let dead = format!("12 (x) Z {tail}");
        assert_eq!(parse_stat(dead.as_bytes()), Some(Stat { start: 777, ended: true }));
        let ended = |state: &str, flags: u64, threads: u64| {
            let stat = format!(
                "12 (x) {state} 4 4 4 0 -1 {flags} 0 0 0 0 0 0 0 0 20 0 {threads} 0 777 0 0"
            );
            parse_stat(stat.as_bytes()).unwrap().ended
        };
        assert!(ended("R", 4_194_564, 1), "exiting, with all of its memory");
        assert!(!ended("R", 4_194_564, 2) && !ended("Z", 4_194_564, 2), "other threads run");
        assert_eq!(parse_stat(b"12 (x) S 1 2"), None);
        assert_eq!(parse_stat(b""), None);
    }

    #[test]
    fn ended_processes_are_noticed() {
        let mut child = crate::sys::children::spawn(&mut std::process::Command::new("true"));
        let id = child.id() as i32;
        let start = std::time::Instant::now();
        // A zombie until it is reaped.
        while !matches!(state_of(id), ProcessState::Seen(Stat { ended: true, .. })) {
            assert!(start.elapsed().as_secs() < 20);
        }
        child.wait().unwrap();
        assert_eq!(state_of(id), ProcessState::Gone);
    }
}
