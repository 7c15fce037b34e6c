// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Tests with several processes: memory of peers, kills, forks, other users, limits, remaining
//! files.
//!
//! The other processes run this same program with a role in `SCIF_TEST_ROLE`, and report in lines
//! that begin with '@'.
#![expect(unsafe_code, reason = "fork, as programs that know nothing of us do it")]
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a test says what it expects")]

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use scif::{
    Access, AccessError, Config, ConnId, Endpoint, Error, Exports, LinkEvent, Node, PortId, Reason,
    RemoteMem, TransportKind, Waiter,
};
use scif_ring::counter::AtomicFlag;
use scif_ring::{KeyEntry, Mem};

const ROLE: &str = "SCIF_TEST_ROLE";
const PORT: &str = "SCIF_TEST_PORT";
const KEY: u64 = 42;
const UNPRIVILEGED: u32 = 65534;

// ---- the other process

/// Logger that notes whether the engine reports a change of the limit of open files.
struct LogCapture(AtomicFlag);

static LOG_CAPTURE: LogCapture = LogCapture(AtomicFlag::new(false));

impl log::Log for LogCapture {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        if record.args().to_string().contains("RLIMIT_NOFILE") {
            self.0.set(true);
        }
    }

    fn flush(&self) {}
}

#[test]
fn helper() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let port: u16 = std::env::var(PORT).ok().map_or(0, |port| port.parse().unwrap());
    let node = Node::open(Config::from_env(), TransportKind::Soft).unwrap();
    match role.as_str() {
        "serve" => serve(&node, port),
        "fork" => fork_and_hang(&node, port),
        "knock" => knock(&node, port),
        "limits" => exceed_limits(&node),
        "crowd" => crowd(&node),
        other => panic!("no such role: {other}"),
    }
}

/// Echoes records of kind 1, asleep in between; exports a buffer under KEY.
fn serve(node: &Arc<Node>, port: u16) {
    let mut buffer = vec![7u8; 1 << 20];
    let base = buffer.as_mut_ptr().expose_provenance() as u64;
    let keys = node.key_table().unwrap();
    keys.insert(KeyEntry {
        key: KEY,
        base,
        start: 0,
        len: buffer.len() as u64,
        access: 3,
        ..KeyEntry::default()
    })
    .unwrap();
    let mut endpoint = Endpoint::bind(node, port, Exports { keys: Some(keys) }).unwrap();
    println!("@{} {} {}", endpoint.id().port, node.host_hash(), endpoint.id().node);
    let waiter = Waiter::new().unwrap();
    waiter.add(endpoint.wait_fd()).unwrap();
    let mut links = Vec::new();
    loop {
        endpoint.poll_links(&mut links);
        links.clear();
        if !echo(&mut endpoint) {
            endpoint.arm();
            if !echo(&mut endpoint) {
                waiter.wait(None).unwrap();
            }
            endpoint.disarm();
        }
    }
}

fn echo(endpoint: &mut Endpoint) -> bool {
    let mut any = false;
    let ids: Vec<ConnId> = endpoint.conns().collect();
    for id in ids {
        let conn = endpoint.conn(id).unwrap();
        while let Some(record) = conn.rx().peek().unwrap() {
            conn.rx().advance();
            let _ = conn.tx().push_head(2, record.head());
            conn.notify();
            any = true;
        }
    }
    any
}

/// Connects, forks a child that neither execs nor exits, and waits to be killed.
fn fork_and_hang(node: &Arc<Node>, port: u16) {
    let mut endpoint = Endpoint::bind(node, 0, Exports::default()).unwrap();
    let keys = node.key_table().unwrap();
    let dst = PortId::new(node.id(), port);
    let id = endpoint.connect(dst).unwrap();
    let conn = endpoint.conn(id).unwrap();
    conn.tx().push_head(1, b"before").unwrap();
    conn.notify();
    let open_before = sockets();
    assert!(open_before > 0);
    // SAFETY: the child only makes calls that are valid in a forked child, and never returns.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let gone = sockets() == 0;
        let useless = endpoint.forked()
            && endpoint.conn(id).is_none()
            && endpoint.conns().next().is_none()
            && endpoint.connect(dst) == Err(Error::Forked)
            && keys
                .insert(KeyEntry {
                    key: 1,
                    base: 0,
                    start: 0,
                    len: 1,
                    access: 0,
                    ..KeyEntry::default()
                })
                .is_none();
        // A file opened now may get the number of a closed descriptor, and must survive the drop.
        let file = std::fs::File::open("/proc/self/stat").unwrap();
        endpoint.close_conn(id, scif::CloseHow::Orderly);
        drop(endpoint);
        let spared = file.metadata().is_ok();
        let line = format!("@child {} {gone} {useless} {spared}\n", std::process::id());
        rustix::io::write(std::io::stdout(), line.as_bytes()).unwrap();
        loop {
            std::thread::sleep(Duration::from_secs(60));
        }
    }
    std::thread::sleep(Duration::from_millis(100));
    // The parent's connection is unchanged.
    let conn = endpoint.conn(id).unwrap();
    conn.tx().push_head(1, b"after").unwrap();
    conn.notify();
    println!("@parent {}", sockets() == open_before);
    loop {
        std::thread::sleep(Duration::from_secs(60));
    }
}

fn sockets() -> usize {
    let entries = std::fs::read_dir("/proc/self/fd").unwrap();
    let links = entries.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    links
        .filter(|link| {
            link.to_string_lossy().contains("socket") || link.ends_with("anon_inode:[eventpoll]")
        })
        .count()
}

/// Connects once and reports the result.
fn knock(node: &Arc<Node>, port: u16) {
    let mut endpoint = Endpoint::bind(node, 0, Exports::default()).unwrap();
    match endpoint.connect(PortId::new(node.id(), port)) {
        Err(error) => println!("@{error:?}"),
        Ok(id) => match next_event(&mut endpoint) {
            LinkEvent::Connected(_) => {
                println!("@connected {:?}", endpoint.conn(id).unwrap().memory().access());
                // Stays until the other side closes.
                next_event(&mut endpoint);
            }
            other => println!("@{other:?}"),
        },
    }
}

/// Opens more connections than the soft limit of descriptors allows.
fn exceed_limits(node: &Arc<Node>) {
    log::set_logger(&LOG_CAPTURE).unwrap();
    log::set_max_level(log::LevelFilter::Info);
    let mut hub = Endpoint::bind(node, 0, Exports::default()).unwrap();
    let mut rim = Vec::new();
    for _ in 0..100 {
        let mut endpoint = Endpoint::bind(node, 0, Exports::default()).unwrap();
        let id = endpoint.connect(hub.id()).unwrap();
        rim.push((endpoint, id));
    }
    let begin = Instant::now();
    let mut links = Vec::new();
    while links.len() < 100 && begin.elapsed().as_secs() < 20 {
        hub.poll_links(&mut links);
    }
    let accepted = links.iter().filter(|event| matches!(event, LinkEvent::Accepted(..))).count();
    let answers = rim.iter_mut().map(|(endpoint, _)| next_event(endpoint));
    let up = answers.filter(|event| matches!(event, LinkEvent::Connected(_))).count();
    println!("@{accepted} {up} {}", LOG_CAPTURE.0.get());
}

/// Creates more requests in flight than an ordinary user may have: they wait until some are
/// accepted.
fn crowd(node: &Arc<Node>) {
    let mut hub = Endpoint::bind(node, 0, Exports::default()).unwrap();
    let mut endpoint = Endpoint::bind(node, 0, Exports::default()).unwrap();
    let mut pending = Vec::new();
    let refusal = loop {
        match endpoint.connect(hub.id()) {
            Ok(id) => pending.push(id),
            Err(error) => break error,
        }
    };
    let begin = Instant::now();
    let (mut links, mut accepted) = (Vec::new(), 0);
    while accepted < pending.len() && begin.elapsed().as_secs() < 20 {
        hub.poll_links(&mut links);
        for event in links.drain(..) {
            if let LinkEvent::Accepted(id, _) = event {
                accepted += 1;
                // Frees descriptors for the next one.
                hub.close_conn(id, scif::CloseHow::Orderly);
            }
        }
    }
    let again = endpoint.connect(hub.id()).is_ok();
    println!("@{refusal:?} {again} {accepted} {}", pending.len());
}

// ---- this process

struct Helper {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Helper {
    fn start(config: &Config, role: &str, port: u16, also: impl FnOnce(&mut Command)) -> Helper {
        Helper::start_program(&std::env::current_exe().unwrap(), config, role, port, also)
    }

    fn start_program(
        program: &Path,
        config: &Config,
        role: &str,
        port: u16,
        also: impl FnOnce(&mut Command),
    ) -> Helper {
        let mut command = Command::new(program);
        command.args(["--exact", "helper", "--nocapture", "--test-threads=1"]);
        command.env(ROLE, role).env(PORT, port.to_string());
        command
            .env("SCIF_NODE", config.node.to_string())
            .env("SCIF_DOMAIN", config.domain.as_ref().unwrap());
        if let Some(dir) = &config.runtime_dir {
            command.env("SCIF_RUNTIME_DIR", dir);
        }
        also(&mut command);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Helper { child, lines }
    }

    /// Returns the words of its next report.
    fn next_report(&mut self) -> Vec<String> {
        loop {
            let line = self.lines.next().expect("the helper ended without a word").unwrap();
            // The test harness may have begun the line.
            if let Some((_, words)) = line.split_once('@') {
                return words.split_whitespace().map(str::to_owned).collect();
            }
        }
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn config(test: &str) -> Config {
    Config { node: 3, domain: Some(format!("{test}-{}", std::process::id())), ..Config::default() }
}

fn next_event(endpoint: &mut Endpoint) -> LinkEvent {
    let begin = Instant::now();
    let mut events = Vec::new();
    loop {
        endpoint.poll_links(&mut events);
        if let Some(event) = events.pop() {
            assert!(events.is_empty(), "{events:?} besides {event:?}");
            return event;
        }
        assert!(begin.elapsed().as_secs() < 30, "waited in vain");
        std::thread::yield_now();
    }
}

fn exchange(endpoint: &mut Endpoint, id: ConnId, word: &[u8]) {
    let conn = endpoint.conn(id).unwrap();
    conn.tx().push_head(1, word).unwrap();
    conn.notify();
    let begin = Instant::now();
    loop {
        if let Some(record) = conn.rx().peek().unwrap() {
            assert_eq!((record.kind, record.head()), (2, word));
            conn.rx().advance();
            return;
        }
        assert!(begin.elapsed().as_secs() < 30, "no echo");
        std::thread::yield_now();
    }
}

fn mem(bytes: &mut [u8]) -> Mem {
    // SAFETY: the callers keep the buffer and do not access it during the copy for which the view
    // is made.
    unsafe { Mem::new(bytes.as_mut_ptr(), bytes.len()) }
}

#[test]
fn records_and_memory_of_another_process() {
    let config = config("memory");
    let node = Node::open(config.clone(), TransportKind::Soft).unwrap();
    let mut helper = Helper::start(&config, "serve", 0, |_| {});
    let words = helper.next_report();
    assert_eq!(words[1..], [node.host_hash().to_string(), "3".to_owned()]);
    let mut endpoint = Endpoint::bind(&node, 0, Exports::default()).unwrap();
    let id = endpoint.connect(PortId::new(3, words[0].parse().unwrap())).unwrap();
    for n in 0..2000u32 {
        exchange(&mut endpoint, id, &n.to_ne_bytes());
        if n % 100 == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    assert_eq!(next_event(&mut endpoint), LinkEvent::Connected(id));
    let conn = endpoint.conn(id).unwrap();
    assert_eq!(conn.peer_pid(), helper.child.id() as i32);
    assert!(conn.alive() && conn.is_up());
    let (_, _, entry) = conn.keys().unwrap().find(KEY).unwrap();
    assert_eq!(entry.len, 1 << 20);
    if conn.memory().access() == Access::None {
        println!("process_vm is refused here: memory not tried");
        return;
    }
    assert_eq!(conn.memory().access(), Access::ProcessVm);
    let all = RemoteMem { addr: entry.base, len: entry.len };
    let mut copy = vec![0u8; 1 << 20];
    conn.memory().read(&[mem(&mut copy)], &[all]).unwrap();
    assert!(copy.iter().all(|&byte| byte == 7));
    let mut pattern: Vec<u8> = (0..1u32 << 20).map(|i| (i % 255) as u8).collect();
    conn.memory().write(&[mem(&mut pattern)], &[all]).unwrap();
    conn.memory().read(&[mem(&mut copy)], &[all]).unwrap();
    assert_eq!(copy, pattern);
    assert_eq!(
        conn.memory().read(&[mem(&mut copy)], &[RemoteMem { addr: 8, len: 8 }]),
        Err(AccessError::Fault)
    );

    helper.kill();
    let begin = Instant::now();
    assert_eq!(next_event(&mut endpoint), LinkEvent::Closed(id, Reason::Died));
    println!("a kill was noticed after {:?}", begin.elapsed());
    let conn = endpoint.conn(id).unwrap();
    assert!(!conn.alive(), "a zombie is dead");
    assert_eq!(conn.memory().read(&[mem(&mut copy)], &[all]), Err(AccessError::Gone));
}

#[test]
fn killed_and_started_again_under_the_same_port() {
    let config = config("again");
    let node = Node::open(config.clone(), TransportKind::Soft).unwrap();
    let mut endpoint = Endpoint::bind(&node, 0, Exports::default()).unwrap();
    let mut port = 0;
    for round in 0..3 {
        let mut helper = Helper::start(&config, "serve", port, |_| {});
        let reported: u16 = helper.next_report()[0].parse().unwrap();
        assert!(round == 0 || reported == port);
        port = reported;
        let dst = PortId::new(3, port);
        let id = endpoint.connect(dst).unwrap();
        exchange(&mut endpoint, id, b"hello");
        assert_eq!(next_event(&mut endpoint), LinkEvent::Connected(id));
        helper.kill();
        assert_eq!(next_event(&mut endpoint), LinkEvent::Closed(id, Reason::Died));
        drop(helper);
        assert_eq!(endpoint.connect(dst), Err(Error::Refused(dst)));
        endpoint.close_conn(id, scif::CloseHow::Orderly);
    }
}

#[test]
fn a_killed_listener_leaves_a_file_that_is_taken_over() {
    let dir = std::env::temp_dir().join(format!("scif-stale-{}", std::process::id()));
    std::fs::create_dir(&dir).unwrap();
    let config = Config { runtime_dir: Some(dir.clone()), ..config("stale") };
    let files = || {
        let names = std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name != "lock").collect::<Vec<_>>()
    };
    let node = Node::open(config.clone(), TransportKind::Soft).unwrap();
    let mut helper = Helper::start(&config, "serve", 0, |_| {});
    let port: u16 = helper.next_report()[0].parse().unwrap();
    let dst = PortId::new(3, port);
    assert_eq!(Endpoint::bind(&node, port, Exports::default()).err(), Some(Error::PortInUse(dst)));
    helper.kill();
    drop(helper);
    assert_eq!(files().len(), 1, "the kill left the file");
    let mut endpoint = Endpoint::bind(&node, 0, Exports::default()).unwrap();
    assert_eq!(endpoint.connect(dst), Err(Error::Refused(dst)));
    let heir = Endpoint::bind(&node, port, Exports::default()).unwrap();
    endpoint.connect(dst).unwrap();
    drop((heir, endpoint));
    assert_eq!(files(), Vec::<std::ffi::OsString>::new());
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn a_forked_child_keeps_nothing_alive() {
    let config = config("fork");
    let node = Node::open(config.clone(), TransportKind::Soft).unwrap();
    let mut endpoint = Endpoint::bind(&node, 0, Exports::default()).unwrap();
    let mut helper = Helper::start(&config, "fork", endpoint.id().port, |_| {});
    let LinkEvent::Accepted(id, _) = next_event(&mut endpoint) else { panic!("not accepted") };
    let (mut child, mut parent) = (Vec::new(), Vec::new());
    while child.is_empty() || parent.is_empty() {
        let words = helper.next_report();
        match words[0].as_str() {
            "child" => child = words,
            "parent" => parent = words,
            other => panic!("{other}"),
        }
    }
    // No descriptor of the parent is left; the endpoint is unusable; nothing else was closed.
    assert_eq!(child[2..], ["true", "true", "true"]);
    assert_eq!(parent[1..], ["true"]);
    let conn = endpoint.conn(id).unwrap();
    for word in [b"before".as_slice(), b"after"] {
        assert_eq!(conn.rx().peek().unwrap().unwrap().head(), word);
        conn.rx().advance();
    }
    let mut events = Vec::new();
    endpoint.poll_links(&mut events);
    assert!(events.is_empty(), "the child said something: {events:?}");
    helper.kill();
    assert_eq!(next_event(&mut endpoint), LinkEvent::Closed(id, Reason::Died));
    let child = rustix::process::Pid::from_raw(child[1].parse().unwrap()).unwrap();
    rustix::process::test_kill_process(child).expect("the child lives on meanwhile");
    rustix::process::kill_process(child, rustix::process::Signal::KILL).unwrap();
}

#[test]
fn descriptor_limit_is_raised_and_logged() {
    let limit = || {
        let hard = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
        rustix::process::setrlimit(
            rustix::process::Resource::Nofile,
            rustix::process::Rlimit { current: Some(64), maximum: hard },
        )?;
        Ok(())
    };
    let mut helper = Helper::start(&config("limits"), "limits", 0, |command| {
        // SAFETY: only makes two system calls between fork and exec.
        unsafe { command.pre_exec(limit) };
    });
    assert_eq!(helper.next_report(), ["100", "100", "true"]);
}

/// Returns a copy of this program that any user can start; `None` if the user cannot be changed.
fn program_for_all(name: &str) -> Option<PathBuf> {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: takes root to be somebody else");
        return None;
    }
    let program = PathBuf::from(format!("/tmp/scif-{name}-{}", std::process::id()));
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    Some(program)
}

#[test]
fn requests_beyond_the_limit_in_flight_wait() {
    let Some(program) = program_for_all("crowd") else {
        return;
    };
    let limit = || {
        let low = rustix::process::Rlimit { current: Some(120), maximum: Some(120) };
        rustix::process::setrlimit(rustix::process::Resource::Nofile, low)?;
        Ok(())
    };
    let mut helper = Helper::start_program(&program, &config("crowd"), "crowd", 0, |command| {
        command.uid(UNPRIVILEGED).gid(UNPRIVILEGED).current_dir("/");
        // SAFETY: only makes a system call between fork and exec.
        unsafe { command.pre_exec(limit) };
    });
    let words = helper.next_report();
    assert_eq!(words[..2], ["Again", "true"]);
    assert!(words[2] == words[3] && words[3].parse::<usize>().unwrap() > 20, "{words:?}");
    std::fs::remove_file(&program).unwrap();
}

#[test]
fn other_users_are_refused_unless_configured() {
    let Some(program) = program_for_all("knock") else {
        return;
    };
    let base = config("users");
    let knock = |port, allow: &str| {
        let mut helper = Helper::start_program(&program, &base, "knock", port, |command| {
            command
                .uid(UNPRIVILEGED)
                .gid(UNPRIVILEGED)
                .env("SCIF_ALLOW_UIDS", allow)
                .current_dir("/");
        });
        let words = helper.next_report();
        (helper, words)
    };
    let node = Node::open(base.clone(), TransportKind::Soft).unwrap();
    let mut endpoint = Endpoint::bind(&node, 0, Exports::default()).unwrap();
    let mut events = Vec::new();
    // They do not allow our user.
    let words = knock(endpoint.id().port, "").1;
    assert!(words.join(" ").contains("Denied"), "{words:?}");
    endpoint.poll_links(&mut events);
    // We do not allow their user: they are refused at our next poll.
    let port = endpoint.id().port;
    let (_, words) = std::thread::scope(|scope| {
        let helper = scope.spawn(|| knock(port, "0"));
        while !helper.is_finished() {
            endpoint.poll_links(&mut events);
            std::thread::yield_now();
        }
        helper.join().unwrap()
    });
    assert!(words.join(" ").contains("Denied"), "{words:?}");
    assert_eq!((events.len(), endpoint.conn_count()), (0, 0));
    // Both allow the other.
    let node =
        Node::open(Config { allow_uids: vec![UNPRIVILEGED], ..base.clone() }, TransportKind::Soft)
            .unwrap();
    let mut endpoint = Endpoint::bind(&node, 0, Exports::default()).unwrap();
    let port = endpoint.id().port;
    let (_helper, words) = std::thread::scope(|scope| {
        let helper = scope.spawn(|| knock(port, "0"));
        let event = next_event(&mut endpoint);
        let LinkEvent::Accepted(id, _) = event else { panic!("not accepted: {event:?}") };
        let conn = endpoint.conn(id).unwrap();
        assert!(conn.peer_pid() > 0, "a peer that could be found by its pid");
        assert_eq!(
            conn.memory().access(),
            Access::None,
            "root must not touch the memory of another user, which may be a setuid program by now"
        );
        helper.join().unwrap()
    });
    assert_eq!(words, ["connected", "None"], "nobody may not read the memory of root");
    std::fs::remove_file(&program).unwrap();
}

/// The new owner of a port is distinguished from the former one by its process, and by its
/// listening socket.
#[test]
fn owner_of_a_port_is_distinguished_from_the_former_one() {
    let config = config("owner");
    let node = Node::open(config.clone(), TransportKind::Soft).unwrap();
    let mut endpoint = Endpoint::bind(&node, 0, Exports::default()).unwrap();
    let mut processes = Vec::new();
    let mut port = 0;
    for _ in 0..2 {
        let mut helper = Helper::start(&config, "serve", port, |_| {});
        port = helper.next_report().first().unwrap().parse().unwrap();
        let at = PortId::new(node.id(), port);
        let pid = helper.child.id() as i32;
        assert_eq!(endpoint.listener(at), Some(pid));
        let id = endpoint.connect(at).unwrap();
        assert_eq!(next_event(&mut endpoint), LinkEvent::Connected(id));
        exchange(&mut endpoint, id, b"knock");
        let process = endpoint.conn(id).unwrap().peer_process();
        assert!(process.0 == pid && process.1 > 0, "{process:?}");
        processes.push(process);
        helper.kill();
        helper.child.wait().unwrap();
        assert!(!endpoint.conn(id).unwrap().alive_now());
        assert_eq!(endpoint.listener(at), None);
        // Only the end of this connection, without a poll of the others.
        let mut events = Vec::new();
        endpoint.poll_connection(id, &mut events);
        assert_eq!(events, [LinkEvent::Closed(id, Reason::Died)]);
        endpoint.close_conn(id, scif::CloseHow::Reset);
    }
    assert_ne!(processes.first(), processes.last());
}
