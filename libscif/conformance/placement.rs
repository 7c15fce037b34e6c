// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Nodes and ports of the cases, which depend on the driver below the library.

use scif_fabtests::harness::process::{CASE, Cue, Process};

use crate::api::Api;
use crate::measured::{DriverKind, driver_kind, is_trapped};
use crate::rig::{BLOCK, on_device, set_env};

/// Returns the port of a case's listeners; the 15 ports above it are free for the case. On a driver
/// each case has other ports, because a process may leave a port occupied for good.
pub(crate) fn case_port() -> u16 {
    if !is_like_a_driver() {
        return 2050;
    }
    let case = CASE.get().copied().unwrap_or_else(std::process::id);
    8192 + u16::try_from(case % 3500).unwrap() * 16
}

/// Whether that device belongs to a driver. Then all processes are on one node, the host.
pub(crate) fn on_driver() -> bool {
    on_device() && driver_kind().is_driver()
}

/// Whether the device has the traps of mainline's driver.
pub(crate) fn has_traps() -> bool {
    on_device()
        && (driver_kind() == DriverKind::Mainline || (!driver_kind().is_driver() && is_trapped()))
}

/// Whether the device belongs to a driver or has the traps of one: a case may leave it unusable.
pub(crate) fn is_like_a_driver() -> bool {
    on_driver() || has_traps()
}

/// Returns the node that represents a node of the cases.
pub(crate) fn node(number: u16) -> u16 {
    if on_driver() { 0 } else { number }
}

/// Server's part of a case in two processes, on nodes 1 and 2.
#[must_use]
pub(crate) struct Server<'a, S> {
    api: &'a Api,
    run: S,
}

/// Describes the server's part of a case: it runs in this process, with an endpoint of the server.
pub(crate) fn server<S: FnOnce(i32, &Cue)>(api: &Api, run: S) -> Server<'_, S> {
    Server { api, run }
}

impl<S: FnOnce(i32, &Cue)> Server<'_, S> {
    /// Runs both parts. The server has a listener, and the client an endpoint without a connection.
    pub(crate) fn opener(self, client: impl FnOnce(i32, &Cue)) {
        let (mine, theirs) = Cue::pair();
        let other = Process::start(|| {
            set_env("SCIF_NODE", "2");
            theirs.wait();
            client(self.api.open(), &theirs);
        });
        drop(theirs);
        set_env("SCIF_NODE", "1");
        let (listener, _) = self.api.listener(case_port(), 4);
        mine.notify();
        (self.run)(listener, &mine);
        other.wait();
    }

    /// Runs both parts, which are connected.
    pub(crate) fn client(self, client: impl FnOnce(i32, &Cue)) {
        let Server { api, run } = self;
        server(api, |listener, cue| {
            let (peer, epd) = api.accept(listener, BLOCK).unwrap();
            assert_eq!(peer.node, node(2));
            api.close(listener).unwrap();
            run(epd, cue);
        })
        .opener(|epd, cue| {
            assert!(api.connect(epd, node(1), case_port()).unwrap() > 1088);
            client(epd, cue);
        });
    }
}
