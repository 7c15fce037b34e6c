// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Foundation of the cases: connected endpoints, pages, limits, and signals.
#![expect(unsafe_code, reason = "fork, mmap and signals")]

use std::sync::Mutex;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use scif_fabtests::harness::process::{CASE, Cue, Process};
use scif_fabtests::harness::sandbox::become_ordinary_user;
use scif_fabtests::harness::seccomp;

use crate::api::{Api, called};

pub(crate) const IN: i16 = libc::POLLIN;
pub(crate) const OUT: i16 = libc::POLLOUT;
pub(crate) const ERR: i16 = libc::POLLERR;
pub(crate) const HUP: i16 = libc::POLLHUP;
pub(crate) const PAGE: usize = 4096;
pub(crate) const BLOCK: i32 = 1;
pub(crate) const SYNC: i32 = 4;
pub(crate) const FIXED: i32 = 0x10;
pub(crate) const RW: i32 = 3;

/// Whether the library uses a device, a driver's or `libscifdev.so`. Then descriptors are exact.
pub(crate) fn on_device() -> bool {
    std::env::var("SCIF_TRANSPORT").is_ok_and(|transport| transport == "kernel")
}

pub(crate) fn set_env(name: &str, value: &str) {
    // SAFETY: called before the library is used, in a process with one thread.
    unsafe { std::env::set_var(name, value) };
}

/// Exit status of the process of a skipped case.
pub(crate) const ASIDE: i32 = 77;

/// Skips the case, because the machine lacks its subject. The case is not counted as passed.
pub(crate) fn step_aside(why: &str) -> ! {
    assert_eq!(CASE.get(), Some(&std::process::id()), "for the process of the case");
    println!("     {why}");
    // SAFETY: ends this process, and with it all processes it started.
    unsafe { libc::_exit(ASIDE) };
}

/// Skips the case if its processes cannot become an unprivileged user.
pub(crate) fn need_another_user() {
    // Root may lack the capability, or a user namespace with the other user.
    let child = Process::fork(|| i32::from(!become_ordinary_user())).unwrap();
    // SAFETY: no argument.
    let is_root = unsafe { libc::geteuid() == 0 };
    if child.end() != 0 || !is_root {
        step_aside("this user cannot become another one");
    }
}

/// Parent's part of a case in two processes that only synchronise their steps.
#[must_use]
pub(crate) struct Parent<P>(P);

pub(crate) fn parent<P: FnOnce(&Cue)>(run: P) -> Parent<P> {
    Parent(run)
}

impl<P: FnOnce(&Cue)> Parent<P> {
    /// Runs both parts.
    pub(crate) fn child(self, child: impl FnOnce(&Cue)) {
        let (mine, theirs) = Cue::pair();
        let other = Process::start(move || child(&theirs));
        self.0(&mine);
        other.wait();
    }
}

/// Makes a connection within this process: acceptor, opener.
pub(crate) fn loopback(api: &Api) -> (i32, i32) {
    let listener = api.open();
    let port = api.bind(listener, 0).unwrap();
    api.listen(listener, 4).unwrap();
    let opener = api.open();
    let connecting = {
        let api = *api;
        started(move || api.connect(opener, 0, port.try_into().unwrap()).unwrap())
    };
    let (_, acceptor) = api.accept(listener, BLOCK).unwrap();
    let (connecting, thread) = connecting;
    connecting.join().unwrap();
    // A joined thread may stay visible for a moment, and count as a thread of the program.
    until("its thread is gone", || status(thread).is_none());
    api.close(listener).unwrap();
    (acceptor, opener)
}

/// Starts a thread of this process and returns its id.
fn started<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> (JoinHandle<T>, i32) {
    let (number, told) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        // SAFETY: returns a number.
        number.send(unsafe { libc::gettid() }).unwrap();
        body()
    });
    (thread, told.recv().unwrap())
}

/// Returns the status of a thread of this process from /proc.
fn status(thread: i32) -> Option<String> {
    std::fs::read_to_string(format!("/proc/self/task/{thread}/status")).ok()
}

/// Parses the status of a thread: whether it sleeps, and its number of voluntary sleeps.
fn sleep_of(status: &str) -> (bool, u64) {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    let asleep = field("State:").is_some_and(|state| state.trim_start().starts_with('S'));
    let times = field("voluntary_ctxt_switches:").map_or(0, |times| times.trim().parse().unwrap());
    (asleep, times)
}

/// Whether all threads of a process sleep, and still do a while later.
pub(crate) fn sleeps(pid: i32) -> bool {
    let look = || -> Vec<(bool, u64)> {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        tasks
            .filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("status")).ok())
            .map(|status| sleep_of(&status))
            .collect()
    };
    let before = look();
    std::thread::sleep(Duration::from_millis(20));
    before == look() && before.iter().all(|&(asleep, _)| asleep)
}

/// Starts a thread inside a call that waits. The thread sleeps when this returns.
pub(crate) fn waits_in<T: Send + 'static>(
    call: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    let (handle, thread) = started(call);
    until("it sleeps in its call", || {
        let before = status(thread).map(|status| sleep_of(&status));
        std::thread::sleep(Duration::from_millis(2));
        before.is_some_and(|(asleep, _)| asleep)
            && before == status(thread).map(|status| sleep_of(&status))
    });
    handle
}

/// Waits until a condition holds; the watchdog ends a test that waits for ever.
pub(crate) fn until(subject: &str, so: impl FnMut() -> bool) {
    assert!(within(Duration::from_secs(60), so), "never so: {subject}");
}

/// Whether a condition holds within `limit`.
pub(crate) fn within(limit: Duration, mut so: impl FnMut() -> bool) -> bool {
    let begin = Instant::now();
    while !so() {
        if begin.elapsed() > limit {
            return false;
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    true
}

/// Allocates private anonymous pages, aligned.
pub(crate) fn pages(n: usize) -> usize {
    map(n * PAGE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, libc::PROT_READ | libc::PROT_WRITE)
}

pub(crate) fn map(len: usize, flags: i32, prot: i32) -> usize {
    // SAFETY: the kernel picks an unused range.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    at.expose_provenance()
}

pub(crate) fn unmap(at: usize, len: usize) {
    // SAFETY: a range that the test does not use any more.
    let rc = unsafe { libc::munmap(std::ptr::with_exposed_provenance_mut(at), len) };
    assert_eq!(rc, 0);
}

pub(crate) fn protect(at: usize, len: usize, prot: i32) {
    // SAFETY: a range of the test.
    let rc = unsafe { libc::mprotect(std::ptr::with_exposed_provenance_mut(at), len, prot) };
    assert_eq!(rc, 0);
}

/// Replaces a range by private anonymous memory.
pub(crate) fn map_over(at: usize, len: usize) {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a range of the test.
    let got =
        unsafe { libc::mmap(std::ptr::with_exposed_provenance_mut(at), len, prot, flags, -1, 0) };
    assert_ne!(got, libc::MAP_FAILED);
}

pub(crate) fn dont_fork(at: usize, len: usize) {
    let place = std::ptr::with_exposed_provenance_mut(at);
    // SAFETY: a range of the test.
    assert_eq!(unsafe { libc::madvise(place, len, libc::MADV_DONTFORK) }, 0);
}

pub(crate) fn dont_need(at: usize, len: usize) {
    // SAFETY: a range of the test with bytes that it does not need.
    let rc = unsafe {
        libc::madvise(std::ptr::with_exposed_provenance_mut(at), len, libc::MADV_DONTNEED)
    };
    assert_eq!(rc, 0);
}

/// Fills memory of the test with a pattern derived from `seed`.
pub(crate) fn fill(at: usize, len: usize, seed: u8) {
    for i in 0..len {
        poke(at + i, pattern(i, seed));
    }
}

/// Returns new pages whose first `len` bytes have the pattern of [`fill`].
pub(crate) fn filled(n: usize, len: usize, seed: u8) -> usize {
    let at = pages(n);
    fill(at, len, seed);
    at
}

pub(crate) fn pattern(i: usize, seed: u8) -> u8 {
    (i % 251) as u8 ^ seed
}

/// Whether memory holds the pattern of `fill`.
pub(crate) fn holds(at: usize, len: usize, seed: u8) -> bool {
    (0..len).all(|i| peek(at + i) == pattern(i, seed))
}

/// Serves a caller that dies later: registers a page, maps and changes one of the caller, and sends
/// `rounds` bytes, each on a cue. Returns the registered page.
pub(crate) fn serve_mapped(api: &Api, epd: i32, cue: &Cue, rounds: u8) -> usize {
    let own = pages(1);
    assert_eq!(api.register(epd, (own, PAGE), 0x30000, RW, FIXED), Ok(0x30000));
    cue.wait();
    let mapped = api.mmap(epd, (0, PAGE), RW, 0, 0x20000).unwrap();
    assert!(holds(mapped, PAGE, 5));
    cue.meet();
    poke(mapped + 3, 99);
    for round in 0..rounds {
        cue.wait();
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(api.send(epd, &[round], BLOCK), Ok(1));
    }
    cue.wait();
    own
}

pub(crate) fn poke(at: usize, byte: u8) {
    // SAFETY: memory of the test, or mapped by it.
    unsafe { std::ptr::with_exposed_provenance_mut::<u8>(at).write_volatile(byte) };
}

pub(crate) fn peek(at: usize) -> u8 {
    // SAFETY: as in `poke`.
    unsafe { std::ptr::with_exposed_provenance::<u8>(at).read_volatile() }
}

pub(crate) fn peek64(at: usize) -> u64 {
    // SAFETY: as in `poke`, aligned by the callers.
    unsafe { std::ptr::with_exposed_provenance::<u64>(at).read_volatile() }
}

pub(crate) fn poke64(at: usize, n: u64) {
    // SAFETY: as in `peek64`.
    unsafe { std::ptr::with_exposed_provenance_mut::<u64>(at).write_volatile(n) };
}

pub(crate) fn set_nonblocking(fd: i32, on: bool) {
    // SAFETY: changes a flag of a descriptor.
    let rc = unsafe { libc::fcntl(fd, libc::F_SETFL, if on { libc::O_NONBLOCK } else { 0 }) };
    assert_eq!(rc, 0);
}

pub(crate) fn is_cloexec(fd: i32) -> bool {
    // SAFETY: reads a flag of a descriptor.
    unsafe { libc::fcntl(fd, libc::F_GETFD) & libc::FD_CLOEXEC != 0 }
}

pub(crate) fn dup(fd: i32) -> i32 {
    // SAFETY: makes a descriptor.
    called(&-1, || unsafe { libc::dup(fd) }).unwrap()
}

/// Makes `number` refer to another descriptor.
pub(crate) fn dup_to(fd: i32, number: i32) {
    // SAFETY: a number that the test does not use any more.
    assert_eq!(called(&-1, || unsafe { libc::dup2(fd, number) }), Ok(number));
}

/// Calls close(2), not the library's function.
pub(crate) fn plain_close(fd: i32) {
    // SAFETY: a descriptor of the test.
    assert_eq!(called(&-1, || unsafe { libc::close(fd) }), Ok(0));
}

/// Calls poll(2), not the library's function, for the bits of one descriptor.
pub(crate) fn raw_poll(fd: i32, events: i16, timeout_ms: i32) -> i16 {
    let mut entry = libc::pollfd { fd, events, revents: 0 };
    // SAFETY: one live entry.
    let _ = called(&-1, || unsafe { libc::poll(&raw mut entry, 1, timeout_ms) });
    entry.revents
}

extern "C" fn nothing(_signal: libc::c_int) {}

/// Sends a signal to this process at every interval, with or without SA_RESTART.
pub(crate) fn signals(every_us: i64, restart: bool) {
    handle(nothing as *const () as usize, every_us, restart);
}

static COUNTED: Mutex<[usize; 2]> = Mutex::new([0; 2]);

extern "C" fn count(_signal: libc::c_int) {
    let Ok(words) = COUNTED.try_lock() else {
        return;
    };
    for at in words.into_iter().filter(|&at| at != 0) {
        poke64(at, peek64(at) + 1);
    }
}

/// Sends signals like `signals`, and counts each in two words.
pub(crate) fn count_signals(every_us: i64, words: Option<[usize; 2]>) {
    if let Some(words) = words {
        *COUNTED.lock().unwrap() = words;
    }
    handle(count as *const () as usize, every_us, true);
}

fn handle(handler: usize, every_us: i64, restart: bool) {
    // SAFETY: all zeroes is a valid sigaction.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler;
    action.sa_flags = if restart { libc::SA_RESTART } else { 0 };
    // SAFETY: a live sigaction with a handler of ours.
    let rc = unsafe { libc::sigaction(libc::SIGALRM, &raw const action, std::ptr::null_mut()) };
    assert_eq!(rc, 0);
    let time = libc::timeval { tv_sec: every_us / 1_000_000, tv_usec: every_us % 1_000_000 };
    let timer = libc::itimerval { it_interval: time, it_value: time };
    // SAFETY: a live itimerval.
    let rc = unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut()) };
    assert_eq!(rc, 0);
}

pub(crate) fn no_signals() {
    signals(0, true);
}

/// Keeps this process alive after the end of its parent, but for at most 120 s.
pub(crate) fn outlive_parent() {
    // SAFETY: gives up a signal.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, 0) };
    // SAFETY: a signal to come, which ends this process.
    unsafe { libc::alarm(120) };
}

/// Ends this process by SIGKILL.
pub(crate) fn crash() {
    // SAFETY: ends this process.
    unsafe { libc::raise(libc::SIGKILL) };
}

/// Ends this process as `exit` does.
pub(crate) fn leave() {
    // SAFETY: runs the exit handlers, in the only thread that the process has of its own.
    unsafe { libc::exit(0) };
}

/// Returns the number of open descriptors of this process.
pub(crate) fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Sets the limit of descriptors of this process.
pub(crate) fn limit_descriptors(most: u64) {
    let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
    // SAFETY: a live rlimit.
    let rc = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    assert_eq!(rc, 0);
}

/// Sets the soft limit of the size of files; `u64::MAX` raises it to the hard limit.
pub(crate) fn limit_files(most: u64) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: one live limit.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) };
    limit.rlim_cur = most.min(limit.rlim_max);
    // SAFETY: one live limit.
    let set = unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) };
    assert_eq!((known, set), (0, 0));
}

/// Sets the limit of locked bytes of this process, also if it is privileged.
pub(crate) fn limit_locked(most: u64) {
    const CAP_IPC_LOCK: u32 = 14;
    let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
    // SAFETY: a live rlimit.
    let rc = unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit) };
    assert_eq!(rc, 0);
    // Version 3, this thread; then effective, permitted and inheritable sets, low words before high
    // ones.
    let header = [0x2008_0522u32, 0];
    let mut sets = [0u32; 6];
    // SAFETY: a live header of the version that takes six words, and six words.
    let rc = unsafe { libc::syscall(libc::SYS_capget, header.as_ptr(), sets.as_mut_ptr()) };
    assert_eq!(rc, 0);
    sets[0] &= !(1 << CAP_IPC_LOCK);
    // SAFETY: as above; drops a capability.
    let rc = unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), sets.as_ptr()) };
    assert_eq!(rc, 0);
}

/// Makes userfaultfd(2) fail with EPERM for this process, as in a container.
pub(crate) fn deny_userfaultfd() {
    seccomp::deny(&[libc::SYS_userfaultfd]).unwrap();
}

/// Makes this process end by SIGSYS when it reads one byte of a socket, to drop a copied packet.
pub(crate) fn die_dropping_a_packet() {
    seccomp::refuse_argument(libc::SYS_recvfrom, 1, None).unwrap();
}

/// Makes this process end by SIGSYS when it sends to a socket, to signal a peer's descriptor.
pub(crate) fn die_sending_to_a_socket() {
    seccomp::die_in(&[libc::SYS_sendto]).unwrap();
}

/// Maps memory of a file: an anonymous one, or one at `path`, which is removed again.
pub(crate) fn map_file(len: usize, path: Option<&str>, flags: i32) -> usize {
    let fd = match path {
        None => {
            // SAFETY: a C string; makes a descriptor.
            unsafe { libc::memfd_create(c"conformance".as_ptr(), 0) }
        }
        Some(path) => {
            let name = std::ffi::CString::new(path).unwrap();
            let how = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC;
            // SAFETY: a C string; makes a descriptor.
            unsafe { libc::open(name.as_ptr(), how, 0o600) }
        }
    };
    assert!(fd >= 0);
    // SAFETY: a descriptor of the test.
    assert_eq!(unsafe { libc::ftruncate(fd, len as i64) }, 0);
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the kernel picks an unused range.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, fd, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    plain_close(fd);
    if let Some(path) = path {
        std::fs::remove_file(path).unwrap();
    }
    at.expose_provenance()
}

/// Replaces a range by a private mapping of a file. The file ends after its first `in_file` bytes.
pub(crate) fn map_file_over(at: usize, len: usize, in_file: usize) {
    // SAFETY: a C string; makes a descriptor.
    let fd = unsafe { libc::memfd_create(c"conformance".as_ptr(), 0) };
    assert!(fd >= 0);
    // SAFETY: a descriptor of the test.
    assert_eq!(unsafe { libc::ftruncate(fd, in_file as i64) }, 0);
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_FIXED;
    // SAFETY: a range of the test.
    let got =
        unsafe { libc::mmap(std::ptr::with_exposed_provenance_mut(at), len, prot, flags, fd, 0) };
    assert_ne!(got, libc::MAP_FAILED);
    plain_close(fd);
}

/// Allocates huge pages, if this machine has any.
pub(crate) fn huge_pages(len: usize) -> Option<usize> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB;
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the kernel picks an unused range.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, -1, 0) };
    (at != libc::MAP_FAILED).then(|| at.expose_provenance())
}

pub(crate) fn wants_huge_pages(at: usize, len: usize) {
    let place = std::ptr::with_exposed_provenance_mut(at);
    // SAFETY: a range of the test; EINVAL from a kernel without them, which changes nothing.
    unsafe { libc::madvise(place, len, libc::MADV_HUGEPAGE) };
}

pub(crate) fn wants_no_huge_pages(at: usize, len: usize) {
    let place = std::ptr::with_exposed_provenance_mut(at);
    // SAFETY: as in `wants_huge_pages`.
    unsafe { libc::madvise(place, len, libc::MADV_NOHUGEPAGE) };
}

/// Returns the bytes of a kind, by its name in `/proc/self/smaps`, in the areas that touch a range.
pub(crate) fn of_kind(at: usize, len: usize, kind: &str) -> usize {
    let sizes = smaps_values(at, len, kind);
    sizes
        .iter()
        .map(|size| size.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10)
        .sum()
}

/// Returns the values of a name in `/proc/self/smaps`, for each area that touches a range.
pub(crate) fn smaps_values(at: usize, len: usize, name: &str) -> Vec<String> {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut touches = false;
    let mut said = Vec::new();
    for line in smaps.lines() {
        let (first, rest) = line.split_once([' ', ':']).unwrap();
        if let Some((from, to)) = first.split_once('-') {
            let [from, to] = [from, to].map(|n| usize::from_str_radix(n, 16).unwrap());
            touches = from < at.saturating_add(len) && to > at;
        } else if touches && first == name {
            said.push(rest.to_owned());
        }
    }
    said
}

/// Whether pages lie in memory of the library that its peers can map.
pub(crate) fn lies_in_an_arena(at: usize, len: usize) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines()
        .filter(|line| line.contains("scif:arena"))
        .filter_map(|line| line.split_once(' ')?.0.split_once('-'))
        .map(|(from, to)| [from, to].map(|n| usize::from_str_radix(n, 16).unwrap()))
        .any(|[from, to]| from < at + len && to > at)
}

/// Makes madvise(2) reject MADV_COLLAPSE, as before Linux 6.1.
pub(crate) fn deny_collapsing() {
    let collapse = libc::MADV_COLLAPSE as u32;
    seccomp::refuse_argument(libc::SYS_madvise, collapse, Some(libc::EINVAL)).unwrap();
}

/// Makes fcntl(2) reject F_SEAL_FUTURE_WRITE, as before Linux 5.1.
pub(crate) fn deny_seal() {
    let size = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
    let seals = size | libc::F_SEAL_FUTURE_WRITE | libc::F_SEAL_SEAL;
    seccomp::refuse_argument(libc::SYS_fcntl, seals as u32, Some(libc::EINVAL)).unwrap();
}

/// Whether an address is mapped.
pub(crate) fn is_mapped(at: usize) -> bool {
    std::fs::read_to_string("/proc/self/maps")
        .unwrap()
        .lines()
        .filter_map(|line| line.split_once(' ')?.0.split_once('-'))
        .filter_map(|(from, to)| {
            Some((usize::from_str_radix(from, 16).ok()?, usize::from_str_radix(to, 16).ok()?))
        })
        .any(|(from, to)| (from..to).contains(&at))
}
