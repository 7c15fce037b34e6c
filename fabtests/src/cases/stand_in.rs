// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Stand-in driver with the traps of mainline's driver, for the cases in `driver/`: its reports,
//! and a listener that accepts nothing by itself.

use std::os::fd::RawFd;

use scif::{Config, Device, Failure};
use scif_fabtests::prelude::*;

/// Name in every report of the stand-in.
pub(super) const REPORT: &str = "SCIF_DEVICE_TRAPS";

/// Returns `NotHere` unless the stand-in serves the calls, with the traps.
pub(super) fn needs_traps() -> Outcome {
    match std::env::var_os(REPORT) {
        Some(_) => Ok(()),
        None => Err(Fail::NotHere("no stand-in driver with traps".into())),
    }
}

/// Runs the body of a rank. Fails if the stand-in reports that the driver would have failed.
pub(super) fn without_reports(body: impl FnOnce() -> Outcome) -> Outcome {
    needs_traps()?;
    let (done, text) = sandbox::stderr_of(body)?;
    check!(!text.contains(REPORT), "{text}");
    done
}

/// Waits for the other ranks without any call of the library, like a program that computes.
pub(super) fn compute(rank: &Rank) -> Outcome {
    rank.barrier(&mut || Ok(()))
}

/// Listener of `scif.h` whose program does not accept.
pub(super) struct SilentListener {
    device: Device,
    fd: RawFd,
    port: u16,
}

impl SilentListener {
    pub(super) fn open() -> Outcome<SilentListener> {
        let failed = |failure: Failure| Fail::here(format_args!("{failure}"));
        let device = Device::open(&Config::from_env()).map_err(failed)?;
        let fd = device.open_endpoint().map_err(failed)?;
        let port = device.bind(fd, 0).map_err(failed)?;
        device.listen(fd, 4).map_err(failed)?;
        Ok(SilentListener { device, fd, port })
    }

    /// Returns the address of an endpoint at this port. `name`: that of an endpoint of this
    /// process.
    pub(super) fn name(&self, name: &[u8]) -> Vec<u8> {
        let mut name = name.to_vec();
        if let Some(port) = name.get_mut(2..4) {
            port.copy_from_slice(&self.port.to_be_bytes());
        }
        name
    }

    /// Accepts the waiting request and closes the connection.
    ///
    /// # Errors
    /// There is none, or its caller has stopped waiting.
    pub(super) fn accept(&self) -> Outcome {
        let accepted = self.device.accept(self.fd, false);
        let (_, fd) = accepted.map_err(|failure| Fail::here(format_args!("{failure}")))?;
        self.device.close(fd).map_err(|failure| Fail::here(format_args!("{failure}")))
    }
}

impl Drop for SilentListener {
    fn drop(&mut self) {
        let _ = self.device.close(self.fd);
    }
}
