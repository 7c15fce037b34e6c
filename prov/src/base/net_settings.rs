// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Settings of the network to other hosts.
//!
//! Not about their text in the environment (`env`).

use std::ffi::{CStr, CString};

use scif::JobKey;

/// Settings of the network to other hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NetSettings {
    /// Provider of libfabric that carries messages.
    pub(crate) choice: NetChoice,
    /// Domain of that provider, such as a network interface; `None` for its first one.
    pub(crate) domain: Option<&'static CStr>,
    /// Key that all processes of the job have.
    pub(crate) key: Option<JobKey>,
    /// Time for which refusals of the network are tolerated.
    pub(crate) timeout_ns: u64,
    /// Time for which pings may stay unanswered; 0 for no limit.
    pub(crate) silence_ns: u64,
}

/// Network to other hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum NetChoice {
    #[default]
    None,
    /// The first of `tcp` and `net` that libfabric has, for a job that spans hosts. Within one host
    /// the settings have `None` instead.
    Auto,
    /// The provider of this name alone. A layered one has two parts, such as `tcp;ofi_rxm`.
    Named(&'static [&'static CStr]),
}

/// Longest name of a provider, in bytes. A longer one is refused as a misspelt setting.
pub(crate) const PROVIDER_NAME_MAX: usize = 48;

impl NetChoice {
    /// Returns the names of the providers to try, in order.
    pub(crate) fn providers(self) -> &'static [&'static CStr] {
        match self {
            NetChoice::None => &[],
            NetChoice::Auto => &[c"tcp", c"net"],
            NetChoice::Named(name) => name,
        }
    }

    /// Returns the choice of a provider by its name; `None` if no provider can have it.
    pub(crate) fn named(text: &str) -> Option<NetChoice> {
        let is_part = |part: &str| {
            let mut bytes = part.bytes();
            bytes.next().is_some_and(|first| first.is_ascii_alphabetic())
                && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-')
        };
        if text.len() > PROVIDER_NAME_MAX || !text.split(';').all(is_part) {
            return None;
        }
        Some(NetChoice::Named(Box::leak(Box::new([lasting(text)?]))))
    }

    /// Replaces `Auto` by `None` unless the job spans hosts.
    pub(crate) fn settle(self, spans_hosts: impl FnOnce() -> bool) -> NetChoice {
        if self == NetChoice::Auto && !spans_hosts() { NetChoice::None } else { self }
    }
}

impl NetSettings {
    /// Takes the name of a domain of the provider; `any` for its first one.
    ///
    /// # Errors
    /// Description of the valid names.
    pub(crate) fn set_domain(&mut self, text: &str) -> Result<(), &'static str> {
        self.domain = match text {
            "any" => None,
            "" => return Err(DOMAINS),
            _ => Some(lasting(text).ok_or(DOMAINS)?),
        };
        Ok(())
    }

    /// Takes the key of the job; `none` and an empty text for no key.
    pub(crate) fn set_key(&mut self, text: &str) {
        self.key = match text {
            "none" => None,
            _ => JobKey::new(Box::leak(text.to_owned().into_boxed_str())),
        };
    }
}

/// Names of domains, for the log.
const DOMAINS: &str = "'any' or the name of a domain of the provider such as 'eth0'";

/// Returns a copy that lasts: settings are read once in a process, and live as long. `None` for a
/// text with a zero byte.
fn lasting(text: &str) -> Option<&'static CStr> {
    Some(Box::leak(CString::new(text).ok()?.into_boxed_c_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_is_opened_for_jobs_of_several_hosts() {
        let named = NetChoice::named("tcp").unwrap();
        for (choice, within, across) in [
            (NetChoice::Auto, NetChoice::None, NetChoice::Auto),
            (NetChoice::None, NetChoice::None, NetChoice::None),
            (named, named, named),
        ] {
            assert_eq!((choice.settle(|| false), choice.settle(|| true)), (within, across));
        }
    }

    #[test]
    fn a_key_and_a_domain_may_be_absent() {
        let mut net = NetSettings::default();
        net.set_key("none of these");
        assert_eq!(net.key, JobKey::new("none of these"));
        net.set_domain("eth0").unwrap();
        assert_eq!(net.domain, Some(c"eth0"));
        for key in ["none", ""] {
            net.set_key("k");
            net.set_key(key);
            assert_eq!(net.key, None);
        }
        assert!(net.set_domain("").is_err() && net.set_domain("a\0b").is_err());
        assert_eq!(net.domain, Some(c"eth0"));
        net.set_domain("any").unwrap();
        assert_eq!(net.domain, None);
    }
}
