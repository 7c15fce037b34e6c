// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Check of the network to other hosts: the provider that FI_SCIF_NET selects in a libfabric, and
//! whether it can carry messages.
//!
//! Not about opening it, which takes memory and a port.

use scif::launcher;

use super::finding::Finding;
use super::inputs::Inputs;
use super::provider::{Library, Network};

const SUBJECT: &str = "network";
/// Providers of FI_SCIF_NET=auto, in order.
const AUTO: [&str; 2] = ["tcp", "net"];

/// Checks the choice of the network in a libfabric.
pub(crate) fn check(inputs: &Inputs, library: &Library) -> Finding {
    let set = inputs.env.get("FI_SCIF_NET").unwrap_or("auto").trim().to_ascii_lowercase();
    let transport = inputs.env.get("FI_SCIF_TRANSPORT").unwrap_or("soft");
    match set.as_str() {
        "none" => Finding::ok(SUBJECT, "none (FI_SCIF_NET=none): ranks on other hosts are refused"),
        "auto" if !transport.eq_ignore_ascii_case("soft") => {
            Finding::ok(SUBJECT, format!("none, with FI_SCIF_TRANSPORT={transport}"))
        }
        name if !transport.eq_ignore_ascii_case("soft") => Finding::slower(
            SUBJECT,
            format!("FI_SCIF_NET={name} has no effect with FI_SCIF_TRANSPORT={transport}"),
            "unset FI_SCIF_NET or FI_SCIF_TRANSPORT",
        ),
        "auto" => chosen(inputs, library),
        name => named(inputs, library, name),
    }
}

/// Returns a name for a libfabric in findings.
fn of(library: &Library) -> String {
    format!("libfabric {} ({})", library.version, library.file)
}

/// Returns the networks of FI_SCIF_NET=auto that a libfabric has, in order.
fn candidates(library: &Library) -> impl Iterator<Item = &Network> {
    AUTO.iter().filter_map(|name| {
        library.networks.iter().find(|network| network.name == *name && network.fits())
    })
}

/// Returns the finding for FI_SCIF_NET=auto.
fn chosen(inputs: &Inputs, library: &Library) -> Finding {
    let filter = inputs.env.get("FI_PROVIDER").unwrap_or_default();
    let Some(network) = candidates(library).find(|network| !excludes(filter, &network.name)) else {
        let (why, action) = match candidates(library).next() {
            Some(network) => (
                format!("FI_PROVIDER={filter} excludes {} of {}", network.name, of(library)),
                "FI_PROVIDER=scif, which does not exclude it".to_owned(),
            ),
            None => (
                format!("{} has neither tcp nor net for reliable datagrams", of(library)),
                other(library, "another libfabric: 1.17 or later has one of both"),
            ),
        };
        let meaning = format!("none: {why}; ranks on other hosts are refused");
        return Finding::slower(SUBJECT, meaning, action);
    };
    let job = if launcher::spans_hosts(|name| inputs.env.get(name).map(str::to_owned)) {
        "the launcher of this process says that its job spans hosts, so it is used"
    } else {
        "jobs that span hosts use it. Without a launcher that says so, none is opened"
    };
    let meaning = format!("auto: {}{} of {}; {job}", network.name, at(network), of(library));
    Finding::ok(SUBJECT, meaning)
}

fn at(network: &Network) -> String {
    network.address.as_ref().map(|address| format!(" at {address}")).unwrap_or_default()
}

/// Returns the finding for a provider that the user has named.
fn named(inputs: &Inputs, library: &Library, name: &str) -> Finding {
    let setting = format!("FI_SCIF_NET={name}");
    let Some(network) = library.networks.iter().find(|network| network.name == name) else {
        let meaning = format!("{setting}: {} has no such provider", of(library));
        return Finding::broken(SUBJECT, meaning, other(library, "unset FI_SCIF_NET"));
    };
    if !network.fits() {
        let meaning =
            format!("{setting}: this provider of {} has no {}", of(library), network.lacks);
        return Finding::broken(SUBJECT, meaning, other(library, "unset FI_SCIF_NET"));
    }
    let filter = inputs.env.get("FI_PROVIDER").unwrap_or_default();
    if let Some((core, _)) = name.split_once(';').filter(|(core, _)| !has_core(filter, core)) {
        let meaning =
            format!("{setting}: FI_PROVIDER={filter} hides {core}, which this provider needs");
        return Finding::broken(SUBJECT, meaning, format!("FI_PROVIDER='scif,{core};scif'"));
    }
    let meaning = format!("{setting}: {name}{} of {}", at(network), of(library));
    if network.is_reachable() {
        return Finding::ok(SUBJECT, meaning);
    }
    Finding::slower(
        SUBJECT,
        format!("{meaning}: other hosts cannot reach this address"),
        "an interface with an IPv4 address of a network of the hosts",
    )
}

/// Returns the remedy for an unusable choice: the networks that a libfabric has, or else `last`.
fn other(library: &Library, last: &str) -> String {
    let fit = |name: &&str| {
        library.networks.iter().any(|network| network.name == **name && network.fits())
    };
    match AUTO.iter().find(|name| fit(name)) {
        Some(name) => format!("FI_SCIF_NET={name}, or unset it"),
        None => last.to_owned(),
    }
}

/// Whether a value of FI_PROVIDER excludes a provider, as the provider reads it.
fn excludes(filter: &str, name: &str) -> bool {
    let names = filter.trim().strip_prefix('^').unwrap_or_default();
    names.split(',').any(|excluded| excluded.trim().eq_ignore_ascii_case(name))
}

/// Whether a layered provider finds its core with a value of FI_PROVIDER: libfabric enables the
/// first part of a layered name.
fn has_core(filter: &str, core: &str) -> bool {
    let is_core = |name: &str| {
        name.trim().split(';').next().is_some_and(|first| first.eq_ignore_ascii_case(core))
    };
    match filter.trim().strip_prefix('^') {
        Some(excluded) => !excluded.split(',').any(is_core),
        None => filter.trim().is_empty() || filter.split(',').any(is_core),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use scif::Config;

    use super::*;
    use crate::doctor::env::Environment;
    use crate::doctor::finding::State;

    type Pair = (&'static str, &'static str);
    /// Networks, environment, and the finding: its state, and parts of its texts.
    type AutoCase = (&'static [Pair], &'static [Pair], State, &'static str, &'static str);

    fn library(networks: &[(&str, &str)]) -> Library {
        let network = |(name, lacks): &(&str, &str)| Network {
            name: (*name).to_owned(),
            lacks: (*lacks).to_owned(),
            address: Some("10.1.2.3".to_owned()),
        };
        Library {
            version: "2.5".to_owned(),
            file: "/x/libfabric.so.1".to_owned(),
            networks: networks.iter().map(network).collect(),
            ..Library::default()
        }
    }

    fn found(env: &[(&str, &str)], library: &Library) -> (State, String, String) {
        let env = Environment::of(env);
        let inputs = Inputs { root: PathBuf::from("/"), env, config: Config::default() };
        let Finding { state, meaning, action, .. } = check(&inputs, library);
        (state, meaning, action)
    }

    const NEW: [(&str, &str); 3] =
        [("udp", "reliable datagrams"), ("tcp", ""), ("tcp;ofi_rxm", "")];
    const OLD: [(&str, &str); 2] = [("tcp", "reliable datagrams"), ("net", "")];

    #[test]
    fn auto_takes_the_first_provider_that_fits() {
        let rows: [AutoCase; 7] = [
            (&NEW, &[], State::Ok, "auto: tcp at 10.1.2.3 of libfabric 2.5", ""),
            (&OLD, &[("FI_SCIF_NET", "Auto")], State::Ok, "auto: net at 10.1.2.3", ""),
            (&OLD, &[("FI_PROVIDER", "scif")], State::Ok, "none is opened", ""),
            (
                &OLD,
                &[("PMI_SIZE", "4"), ("MPI_LOCALNRANKS", "2")],
                State::Ok,
                "its job spans hosts, so it is used",
                "",
            ),
            (&NEW, &[("FI_PROVIDER", "^tcp")], State::Slower, "^tcp excludes tcp", "=scif"),
            (
                &[("udp", "reliable datagrams")],
                &[],
                State::Slower,
                "neither tcp nor net",
                "1.17 or later",
            ),
            (&[], &[("FI_SCIF_TRANSPORT", "kernel")], State::Ok, "none, with FI_SCIF_TR", ""),
        ];
        for (networks, env, state, meaning, action) in rows {
            let found = found(env, &library(networks));
            assert!(found.0 == state && found.1.contains(meaning), "{found:?}");
            assert!(found.2.contains(action) && (found.2.is_empty() == action.is_empty()));
        }
    }

    #[test]
    fn a_named_provider_must_exist_and_fit() {
        let rows: [(&str, &str, State, &str, &str); 9] = [
            ("tcp", "", State::Ok, "FI_SCIF_NET=tcp: tcp at 10.1.2.3 of libfabric 2.5", ""),
            ("none", "", State::Ok, "ranks on other hosts are refused", ""),
            ("efa", "", State::Broken, "libfabric 2.5 (/x/libfabric.so.1) has no such", "=tcp,"),
            ("udp", "", State::Broken, "has no reliable datagrams", "=tcp, or unset it"),
            ("tcp;ofi_rxm", "", State::Ok, "FI_SCIF_NET=tcp;ofi_rxm", ""),
            ("tcp;ofi_rxm", "scif,tcp;scif", State::Ok, "FI_SCIF_NET=tcp;ofi_rxm", ""),
            ("tcp;ofi_rxm", "scif,tcp", State::Ok, "FI_SCIF_NET=tcp;ofi_rxm", ""),
            ("tcp;ofi_rxm", "scif", State::Broken, "hides tcp", "FI_PROVIDER='scif,tcp;scif'"),
            ("tcp;ofi_rxm", "^udp,tcp", State::Broken, "hides tcp", "='scif,tcp;scif'"),
        ];
        for (name, filter, state, meaning, action) in rows {
            let env = [("FI_SCIF_NET", name), ("FI_PROVIDER", filter)];
            let found = found(&env, &library(&NEW));
            assert!(found.0 == state && found.1.contains(meaning), "{found:?}");
            assert!(found.2.contains(action) && (found.2.is_empty() == action.is_empty()));
        }
        let kernel = [("FI_SCIF_NET", "tcp"), ("FI_SCIF_TRANSPORT", "kernel")];
        assert_eq!(found(&kernel, &library(&NEW)).0, State::Slower);
        let mut alone = library(&NEW);
        alone.networks[1].address = Some("127.0.0.1".to_owned());
        let found = found(&[("FI_SCIF_NET", "tcp")], &alone);
        assert!(found.0 == State::Slower && found.1.ends_with("cannot reach this address"));
    }
}
