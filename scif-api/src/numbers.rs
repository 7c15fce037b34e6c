// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Support for a stand-in for the device. It recognises its endpoints among the descriptors of the
//! program, and stores a number at each. It moves an accepted endpoint to a descriptor that the
//! program has opened.
//!
//! Not about the calls. Source: `SCIF_ACCEPTREG` of the drivers.

use std::os::fd::RawFd;

use scif::sys::descriptor;

use crate::ending;
use crate::endpoints::Endpoints;
use crate::failure::Result;
use crate::lock::take;
use crate::registration::page_restore;

impl Endpoints {
    /// Returns the number that [`set_label`](Self::set_label) stored at the endpoint, 0 if none.
    ///
    /// # Errors
    /// [`Failure::BadDescriptor`](super::Failure::BadDescriptor),
    /// [`Failure::NotAnEndpoint`](super::Failure::NotAnEndpoint).
    pub fn label(&self, fd: RawFd) -> Result<u64> {
        Ok(self.0.get(fd)?.label.get())
    }

    /// Stores a number at an endpoint.
    ///
    /// # Errors
    /// Errors of [`label`](Self::label).
    pub fn set_label(&self, fd: RawFd, label: u64) -> Result<()> {
        self.0.get(fd)?.label.set(label);
        Ok(())
    }

    /// Returns the identifier of an endpoint, which no other endpoint of this process has or gets.
    ///
    /// # Errors
    /// Errors of [`label`](Self::label).
    pub fn identifier(&self, fd: RawFd) -> Result<u64> {
        Ok(self.0.get(fd)?.token)
    }

    /// Whether the endpoint of an identifier exists, so that a descriptor of it is open.
    #[must_use]
    pub fn exists(&self, identifier: u64) -> bool {
        take(&self.0.service).watched.get(&identifier).is_some_and(|epd| !epd.is_over())
    }

    /// Makes the number `to` of another endpoint refer to the endpoint `from`, and closes `from`.
    /// The flags O_CLOEXEC and O_NONBLOCK of `to` stay.
    ///
    /// # Errors
    /// Errors of [`label`](Self::label), of either.
    pub fn replace(&self, from: RawFd, to: RawFd) -> Result<()> {
        let (new, old) = (self.0.get(from)?, self.0.get(to)?);
        descriptor::replace(from, to)?;
        self.0.enter(to, new)?;
        ending::close(&self.0, from)?;
        if ending::end_if_closed(&self.0, &old) {
            drop(old);
            page_restore::take_back(&self.0);
        }
        Ok(())
    }

    /// Returns the node of this process.
    #[must_use]
    pub fn node(&self) -> u16 {
        self.0.config.node
    }

    /// Forgets a number that became another file by means invisible to the engine.
    pub fn forget(&self, fd: RawFd) {
        drop(self.0.forget(fd));
    }
}

#[cfg(test)]
mod tests {
    use scif::{Config, PortId};

    use super::super::{Failure, PollFd};
    use super::*;

    #[test]
    fn an_accepted_endpoint_is_put_in_its_place() {
        let _alone = scif::sys::children::none();
        let config = Config {
            domain: Some(format!("numbers-{}", scif::sys::process::pid())),
            ..Config::default()
        };
        let endpoints = Endpoints::new(config).unwrap();
        let listener = endpoints.open().unwrap();
        let port = endpoints.bind(listener, 0).unwrap();
        endpoints.listen(listener, 1).unwrap();
        let (opener, place) = (endpoints.open().unwrap(), endpoints.open().unwrap());
        endpoints.set_label(place, 7).unwrap();
        assert_eq!(endpoints.label(place), Ok(7));
        std::thread::scope(|scope| {
            scope.spawn(|| endpoints.connect(opener, PortId::new(0, port)).unwrap());
            let (_, accepted) = endpoints.accept(listener, true).unwrap();
            endpoints.replace(accepted, place).unwrap();
            // The number is free, or names a file that another test has opened since.
            assert!(endpoints.label(accepted).is_err());
        });
        assert_eq!(endpoints.label(place), Ok(0), "another endpoint");
        assert_eq!(endpoints.usable(place), Ok(()));
        let mut entry = [PollFd { fd: place, events: libc::POLLOUT, revents: 0 }];
        assert_eq!(endpoints.poll(&mut entry, 0), Ok(1));
        endpoints.forget(place);
        assert_eq!(endpoints.usable(place), Ok(()), "found again by what it is");
        endpoints.close(place).unwrap();
        assert_eq!(endpoints.usable(opener), Err(Failure::Reset));
    }
}
