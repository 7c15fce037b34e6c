// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Address of a port's socket: an abstract name, or a file in the runtime directory.
//!
//! Not about data on the socket. A listener is named `<node>/<port>` below its domain. The
//! connecting socket is bound below that to `<pid>.<n>`, so that the acceptor learns its identity
//! from the kernel. Abstract names disappear with their process. A listener's file may remain and
//! is then taken over: a file that refuses connections has no listener. This happens under the lock
//! of the directory, since a socket that is bound but does not listen yet refuses as well.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::SocketAddrUnix;

use crate::addr::PortId;
use crate::error::{Error, Result};
use crate::sys::{file, process, unix};

/// Maximum length in bytes of the path of a runtime directory: file names need the rest of
/// `sun_path`.
const DIR_MAX: usize = 70;
const LOCK: &str = "lock";
const LOCK_TRIES: u32 = 2000;

/// The name space of one domain.
#[derive(Debug)]
pub enum Names {
    Abstract { domain: String },
    Dir { dir: PathBuf, domain: String },
}

/// A socket file that is removed with its owner.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    id: (u64, u64),
}

impl SocketFile {
    fn new(path: PathBuf) -> Result<SocketFile> {
        let id = process::file_id(&path).map_err(Error::os("stat"))?;
        Ok(SocketFile { path, id })
    }

    /// Removes the file, unless another process's file has taken its place.
    pub fn remove(&self) {
        if process::file_id(&self.path) == Ok(self.id) {
            let _ = file::unlink(&self.path);
        }
    }
}

impl Names {
    /// Returns the name space of the settings; `uid` replaces a domain that is not set.
    pub fn new(runtime_dir: Option<&Path>, domain: Option<&str>, uid: u32) -> Result<Names> {
        let domain = domain.map_or_else(|| uid.to_string(), str::to_owned);
        let Some(dir) = runtime_dir else {
            return Ok(Names::Abstract { domain });
        };
        if !dir.is_dir() {
            return Err(Error::Config(format!("no such directory: {}", dir.display())));
        }
        if dir.as_os_str().len() > DIR_MAX {
            return Err(Error::Config(format!("path longer than {DIR_MAX}: {}", dir.display())));
        }
        Ok(Names::Dir { dir: dir.to_owned(), domain })
    }

    pub(crate) fn domain(&self) -> &str {
        match self {
            Names::Abstract { domain } | Names::Dir { domain, .. } => domain,
        }
    }

    fn listener_path(dir: &Path, domain: &str, id: PortId) -> PathBuf {
        dir.join(format!("{domain}.{}.{}", id.node, id.port))
    }

    /// Returns the address at which `id` listens.
    ///
    /// # Errors
    /// [`Error::NoNetwork`] for a port of another host, whose number may have a listener here too.
    pub fn listener(&self, id: PortId) -> Result<SocketAddrUnix> {
        if id.place != 0 {
            return Err(Error::NoNetwork(id));
        }
        match self {
            Names::Abstract { domain } => {
                let name = format!("scif/{domain}/{}/{}", id.node, id.port);
                SocketAddrUnix::new_abstract_name(name.as_bytes())
            }
            Names::Dir { dir, domain } => {
                SocketAddrUnix::new(Names::listener_path(dir, domain, id))
            }
        }
        .map_err(Error::os("socket name"))
    }

    /// Binds a listener's socket and listens. EADDRINUSE: the port is taken.
    pub(crate) fn bind_listener(
        &self,
        socket: &OwnedFd,
        id: PortId,
        backlog: i32,
    ) -> Result<Option<SocketFile>> {
        let addr = self.listener(id)?;
        let Names::Dir { dir, domain } = self else {
            unix::bind(socket, &addr).map_err(Error::os("bind"))?;
            unix::listen(socket, backlog).map_err(Error::os("listen"))?;
            return Ok(None);
        };
        let path = Names::listener_path(dir, domain, id);
        bind_file(socket, &addr, (dir, &path), backlog)?;
        SocketFile::new(path).map(Some)
    }

    /// Returns the address of the listener `name`, whose parts are separated by slashes. Its first
    /// part is no number, which would be a node.
    ///
    /// # Errors
    /// [`Error::Os`] for a name that is too long.
    pub fn named(&self, name: &str) -> Result<SocketAddrUnix> {
        match self {
            Names::Abstract { domain } => {
                SocketAddrUnix::new_abstract_name(format!("scif/{domain}/{name}").as_bytes())
            }
            Names::Dir { dir, domain } => SocketAddrUnix::new(named_path(dir, domain, name)),
        }
        .map_err(Error::os("socket name"))
    }

    /// Binds a socket to the name `name` and listens. EADDRINUSE: the name is taken.
    ///
    /// # Errors
    /// [`Error::Os`] of the failed system call.
    pub fn bind_named(
        &self,
        socket: &OwnedFd,
        name: &str,
        backlog: i32,
    ) -> Result<Option<SocketFile>> {
        let addr = self.named(name)?;
        let Names::Dir { dir, domain } = self else {
            unix::bind(socket, &addr).map_err(Error::os("bind"))?;
            unix::listen(socket, backlog).map_err(Error::os("listen"))?;
            return Ok(None);
        };
        let path = named_path(dir, domain, name);
        bind_file(socket, &addr, (dir, &path), backlog)?;
        SocketFile::new(path).map(Some)
    }

    /// Returns the address of the holders of the shared table `name`.
    pub(crate) fn shared_table(&self, name: &str) -> Result<SocketAddrUnix> {
        self.named(&format!("table/{name}"))
    }

    /// Binds the socket of a new shared table and listens. EADDRINUSE: the name
    /// is taken.
    pub(crate) fn bind_table(&self, socket: &OwnedFd, name: &str, backlog: i32) -> Result<()> {
        self.bind_named(socket, &format!("table/{name}"), backlog).map(drop)
    }

    /// Removes the file of the shared table `name` if its last holder has closed it.
    pub(crate) fn tidy_table(&self, name: &str) {
        let Names::Dir { dir, domain } = self else {
            return;
        };
        if let (Ok(addr), Ok(_locked)) = (self.shared_table(name), lock(dir)) {
            if is_stale(&addr) {
                let _ = file::unlink(&named_path(dir, domain, &format!("table/{name}")));
            }
        }
    }

    /// Binds a connecting socket of `own`, with an unused number. The file, if any, can be removed
    /// once connected.
    pub fn bind_source(
        &self,
        socket: &OwnedFd,
        own: PortId,
        serial: &mut u32,
    ) -> Result<Option<SocketFile>> {
        let pid = process::pid();
        loop {
            *serial = serial.wrapping_add(1);
            let source = format!("{}/{}/{pid}.{serial}", own.node, own.port);
            let (addr, path) = match self {
                Names::Abstract { domain } => (
                    SocketAddrUnix::new_abstract_name(format!("scif/{domain}/{source}").as_bytes()),
                    None,
                ),
                Names::Dir { dir, domain } => {
                    let path = dir.join(format!("{domain}.{}", source.replace('/', ".")));
                    (SocketAddrUnix::new(&path), Some(path))
                }
            };
            let addr = addr.map_err(Error::os("socket name"))?;
            match unix::bind(socket, &addr) {
                Ok(()) => return path.map(SocketFile::new).transpose(),
                // A namesake in another pid namespace, or a file left behind.
                Err(Errno::ADDRINUSE) => {}
                Err(errno) => {
                    return Err(Error::Os { call: "bind", errno });
                }
            }
        }
    }

    /// Returns the port in a name that `bind_source` made.
    pub fn parse_source(&self, addr: &SocketAddrUnix) -> Option<PortId> {
        let own = |domain: &str, node, port, process: &str, rest: Option<&str>| {
            let expected = match self {
                Names::Abstract { domain } | Names::Dir { domain, .. } => domain,
            };
            let (pid, serial) = process.split_once('.')?;
            let _: (u32, u32) = (pid.parse().ok()?, serial.parse().ok()?);
            (rest.is_none() && domain == expected).then_some(PortId::new(node, port))
        };
        match self {
            Names::Abstract { .. } => {
                let name = std::str::from_utf8(addr.abstract_name()?).ok()?;
                let mut parts = name.strip_prefix("scif/")?.split('/');
                let (domain, node, port) = (parts.next()?, parts.next()?, parts.next()?);
                own(domain, node.parse().ok()?, port.parse().ok()?, parts.next()?, parts.next())
            }
            Names::Dir { .. } => {
                let path = Path::new(std::ffi::OsStr::from_bytes(addr.path_bytes()?))
                    .file_name()?
                    .to_str()?;
                // The domain itself may contain dots.
                let mut parts = path.rsplitn(5, '.');
                let (serial, pid) = (parts.next()?, parts.next()?);
                let (port, node, domain) = (parts.next()?, parts.next()?, parts.next()?);
                let process = format!("{pid}.{serial}");
                own(domain, node.parse().ok()?, port.parse().ok()?, &process, None)
            }
        }
    }
}

fn named_path(dir: &Path, domain: &str, name: &str) -> PathBuf {
    dir.join(format!("{domain}.{}", name.replace('/', ".")))
}

/// Binds a socket to a file of the runtime directory and listens. Takes over a file without a
/// listener.
fn bind_file(
    socket: &OwnedFd,
    addr: &SocketAddrUnix,
    (dir, path): (&Path, &Path),
    backlog: i32,
) -> Result<()> {
    let _locked = lock(dir)?;
    let bound = match unix::bind(socket, addr) {
        Err(Errno::ADDRINUSE) if is_stale(addr) => {
            file::unlink(path).map_err(Error::os("unlink"))?;
            unix::bind(socket, addr)
        }
        other => other,
    };
    bound.map_err(Error::os("bind"))?;
    unix::listen(socket, backlog).map_err(Error::os("listen"))
}

/// Takes the lock of a runtime directory, released when the value is dropped.
fn lock(dir: &Path) -> Result<OwnedFd> {
    let fd = file::open_lock(&dir.join(LOCK)).map_err(Error::os("open"))?;
    for _ in 0..LOCK_TRIES {
        match file::try_lock(&fd) {
            Ok(()) => return Ok(fd),
            // Held for some microseconds; a stopped holder must not block us without end.
            Err(Errno::WOULDBLOCK | Errno::INTR) => std::thread::sleep(Duration::from_millis(1)),
            Err(errno) => {
                return Err(Error::Os { call: "flock", errno });
            }
        }
    }
    Err(Error::Os { call: "flock", errno: Errno::WOULDBLOCK })
}

/// Whether a socket file has no listener. Called with the lock held.
fn is_stale(addr: &SocketAddrUnix) -> bool {
    unix::socket().is_ok_and(|probe| unix::connect(probe.as_fd(), addr) == Err(Errno::CONNREFUSED))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_of_another_host_is_not_looked_for_here() {
        let names = Names::new(None, None, 5).unwrap();
        let name = std::net::SocketAddrV4::new([10, 77, 0, 2].into(), 1100);
        let abroad = PortId::abroad(3, name);
        assert_eq!(names.listener(abroad).unwrap_err(), Error::NoNetwork(abroad));
        assert!(names.listener(PortId::new(3, 1100)).is_ok());
    }

    #[test]
    fn sources_are_understood_and_others_not() {
        let own = PortId::new(3, 1100);
        for names in [
            Names::new(None, None, 5).unwrap(),
            Names::new(None, Some("a.b"), 5).unwrap(),
            Names::new(Some(&std::env::temp_dir()), Some("a.b"), 5).unwrap(),
        ] {
            let (socket, mut serial) = (unix::socket().unwrap(), 0);
            let file = names.bind_source(&socket, own, &mut serial).unwrap();
            let addr = rustix::net::getsockname(&socket).unwrap();
            assert_eq!(names.parse_source(&SocketAddrUnix::try_from(addr).unwrap()), Some(own));
            if let Some(file) = file {
                file.remove();
                assert!(!file.path.exists());
            }
        }
        let names = Names::new(None, None, 5).unwrap();
        for bad in [
            "scif/5/3/1100",
            "scif/6/3/1100/1.1",
            "scif/5/3/x/1.1",
            "scif/5/3/1100/1.1/2",
            "5/3/1/1.1",
            "",
        ] {
            let addr = SocketAddrUnix::new_abstract_name(bad.as_bytes()).unwrap();
            assert_eq!(names.parse_source(&addr), None, "{bad}");
        }
    }

    #[test]
    fn bad_directories_are_refused() {
        assert!(Names::new(Some(Path::new("/does/not/exist")), None, 0).is_err());
        let long = std::env::temp_dir().join("x".repeat(80));
        std::fs::create_dir_all(&long).unwrap();
        assert!(Names::new(Some(&long), None, 0).is_err());
        std::fs::remove_dir(&long).unwrap();
    }
}
