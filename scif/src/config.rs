// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Settings of an administrator or a test; the only file that reads the environment.

use std::cell::RefCell;
use std::env;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Once;

use crate::spelling::unknown_settings;

/// Implementation that serves the calls of `scif.h`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Carrier {
    /// Shared memory of this library, without a driver.
    Soft,
    /// A driver of the kernel.
    Kernel,
    /// A working driver if one exists, otherwise this library.
    Auto,
}

/// Prefixes of the variables that the Scientific Filesystem (SCIF) of Apptainer and Singularity
/// containers sets. They are not misspelt settings.
const SCIENTIFIC_FILESYSTEM: [&str; 9] = [
    "SCIF_ALLOW_APPEND",
    "SCIF_APP",
    "SCIF_BASE",
    "SCIF_DATA",
    "SCIF_ENTRY",
    "SCIF_MESSAGELEVEL",
    "SCIF_PWD",
    "SCIF_PYSHELL",
    "SCIF_SHELL",
];

/// Possible numbers of DMA threads. More of them than processors only compete for these.
const DMA_CHANNELS: RangeInclusive<u64> = 1..=16;

fn is_of_scientific_filesystem(name: &str) -> bool {
    SCIENTIFIC_FILESYSTEM.iter().any(|beginning| name.starts_with(beginning))
}

/// Settings of a node.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "plain configuration")]
pub struct Config {
    /// SCIF node of this process (`SCIF_NODE`).
    pub node: u16,
    /// Directory for sockets as files, for peers in different network namespaces
    /// (`SCIF_RUNTIME_DIR`). `None`: abstract names, without any file.
    pub runtime_dir: Option<PathBuf>,
    /// Domain whose endpoints see each other (`SCIF_DOMAIN`); `None`: the domain of one user.
    pub domain: Option<String>,
    /// Whether to lift Yama's restriction on reading our memory (`SCIF_PTRACER`).
    pub ptracer: bool,
    /// Users, besides our own, that may connect to us and to which we connect (`SCIF_ALLOW_UIDS`).
    pub allow_uids: Vec<u32>,
    /// Whether every call of `scif.h` checks that a descriptor still refers to its endpoint
    /// (`SCIF_STRICT_FD`).
    pub strict_fd: bool,
    /// Time in milliseconds for which a listener without free descriptors keeps connecting peers
    /// waiting before it refuses them.
    pub refuse_after_ms: u64,
    /// Time in microseconds for which a blocking call of `scif.h` polls before it sleeps
    /// (`SCIF_SPIN_US`).
    pub spin_us: u64,
    /// Time in milliseconds for which `scif_connect` waits to be accepted
    /// (`SCIF_CONNECT_TIMEOUT_MS`).
    pub connect_timeout_ms: u64,
    /// Whether `scif_register` fails where pages cannot be moved (`SCIF_WINDOW_STRICT`).
    pub window_strict: bool,
    /// Whether registered pages count against RLIMIT_MEMLOCK (`SCIF_MEMLOCK`).
    pub memlock: bool,
    /// Level of the messages of `libscif` on the standard error stream (`SCIF_LOG`).
    pub log: log::LevelFilter,
    /// Implementation that serves `scif.h` (`SCIF_TRANSPORT`).
    pub carrier: Carrier,
    /// Path of the driver's device (`SCIF_DEVICE`); `None`: the usual paths.
    pub device: Option<PathBuf>,
    /// Whether `libscifdev.so` also reproduces the pitfalls of the mainline driver
    /// (`SCIF_DEVICE_TRAPS`).
    pub device_traps: bool,
    /// With `device_traps`: every n-th send of the process finds the queue of its node full for 3
    /// s, and fails with ENODEV although its bytes are delivered; 0 for none (`SCIF_DEVICE_STALL`).
    pub device_stall: u64,
    /// Length in bytes from which an RMA that need not wait is left to the DMA thread
    /// (`SCIF_DMA_MIN`).
    pub dma_min: u64,
    /// Whether the user has set `dma_min`.
    pub dma_min_is_set: bool,
    /// Whether the loss of a node kills the processes that have mapped its memory
    /// (`SCIF_NODE_LOST`).
    pub node_lost_kill: bool,
    /// Number of threads that execute RMA without waiting (`SCIF_DMA_CHANNELS`).
    pub dma_channels: u64,
    /// Nanoseconds for which the deletion of a window waits for RMAs on it. Only a stopped process
    /// takes that long. Afterwards the deletion continues with a warning.
    pub window_rest_ns: u64,
    /// Warnings about the environment, logged by the first node that is opened.
    pub warnings: Vec<String>,
}

/// Whether a text is a valid domain name.
pub(crate) fn is_domain(text: &str) -> bool {
    let fits = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    text.len() <= 32 && text.bytes().all(fits)
}

impl Default for Config {
    fn default() -> Config {
        Config {
            node: 0,
            runtime_dir: None,
            domain: None,
            ptracer: true,
            allow_uids: Vec::new(),
            strict_fd: false,
            refuse_after_ms: 3000,
            spin_us: 20,
            connect_timeout_ms: 30_000,
            window_strict: false,
            memlock: false,
            log: log::LevelFilter::Warn,
            carrier: Carrier::Auto,
            device: None,
            device_traps: false,
            device_stall: 0,
            dma_min: 256 << 10,
            dma_min_is_set: false,
            node_lost_kill: false,
            dma_channels: 1,
            window_rest_ns: 30_000_000_000,
            warnings: Vec::new(),
        }
    }
}

impl Config {
    /// Reads the environment. An invalid value leaves the default and adds a warning.
    #[must_use]
    pub fn from_env() -> Config {
        let mut config =
            Config::from_lookup(|name| env::var(name).ok().filter(|value| !value.is_empty()));
        let set = env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        config.warnings.extend(Config::unknown(set));
        config
    }

    /// Returns a warning for each variable of `set` that resembles a setting and is none.
    fn unknown(set: impl Iterator<Item = String>) -> Vec<String> {
        let set = set.filter(|name| !is_of_scientific_filesystem(name));
        unknown_settings("SCIF_", &Config::names(), set).collect()
    }

    /// Logs the warnings about the environment, once per process: they are equal for all objects.
    pub fn warn(&self) {
        static WARNED: Once = Once::new();
        if !self.warnings.is_empty() {
            WARNED.call_once(|| self.warnings.iter().for_each(|warning| log::warn!("{warning}")));
        }
    }

    /// Returns the names of all settings: the ones that `from_lookup` looks up.
    fn names() -> Vec<String> {
        let names = RefCell::new(Vec::new());
        Config::from_lookup(|name| {
            names.borrow_mut().push(name.to_owned());
            None
        });
        names.into_inner()
    }

    fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Config {
        let mut config = Config::default();
        let mut warnings = Vec::new();
        let mut warn = |name: &str, value: &str, wanted: &str| {
            warnings.push(format!("{name}={value}: invalid, default used. Set {wanted}"));
        };
        if let Some(value) = lookup("SCIF_NODE") {
            match value.parse() {
                Ok(node) => config.node = node,
                Err(_) => warn("SCIF_NODE", &value, "a number from 0 to 65535"),
            }
        }
        config.runtime_dir = lookup("SCIF_RUNTIME_DIR").map(PathBuf::from);
        config.device = lookup("SCIF_DEVICE").map(PathBuf::from);
        match lookup("SCIF_TRANSPORT").as_deref() {
            None => {}
            Some("soft") => config.carrier = Carrier::Soft,
            Some("kernel") => config.carrier = Carrier::Kernel,
            Some("auto") => config.carrier = Carrier::Auto,
            Some(value) => warn("SCIF_TRANSPORT", value, "soft, kernel or auto"),
        }
        if let Some(value) = lookup("SCIF_DOMAIN") {
            if is_domain(&value) {
                config.domain = Some(value);
            } else {
                warn("SCIF_DOMAIN", &value, "at most 32 letters, digits, '-', '_' or '.'");
            }
        }
        let mut switch = |name: &str, value: Option<String>, to: &mut bool| match value.as_deref() {
            None => {}
            Some("1" | "yes" | "on" | "true") => *to = true,
            Some("0" | "no" | "off" | "false") => *to = false,
            Some(value) => warn(name, value, "0 or 1"),
        };
        switch("SCIF_PTRACER", lookup("SCIF_PTRACER"), &mut config.ptracer);
        switch("SCIF_STRICT_FD", lookup("SCIF_STRICT_FD"), &mut config.strict_fd);
        switch("SCIF_WINDOW_STRICT", lookup("SCIF_WINDOW_STRICT"), &mut config.window_strict);
        switch("SCIF_MEMLOCK", lookup("SCIF_MEMLOCK"), &mut config.memlock);
        switch("SCIF_DEVICE_TRAPS", lookup("SCIF_DEVICE_TRAPS"), &mut config.device_traps);
        if let Some(value) = lookup("SCIF_LOG") {
            match value.parse() {
                Ok(level) => config.log = level,
                Err(_) => warn("SCIF_LOG", &value, "off, error, warn, info or debug"),
            }
        }
        let mut number =
            |name: &str, value: Option<String>, to: &mut u64| match value.map(|v| (v.parse(), v)) {
                None => {}
                Some((Ok(n), _)) => *to = n,
                Some((Err(_), value)) => warn(name, &value, "a number"),
            };
        number("SCIF_SPIN_US", lookup("SCIF_SPIN_US"), &mut config.spin_us);
        number(
            "SCIF_CONNECT_TIMEOUT_MS",
            lookup("SCIF_CONNECT_TIMEOUT_MS"),
            &mut config.connect_timeout_ms,
        );
        number("SCIF_DEVICE_STALL", lookup("SCIF_DEVICE_STALL"), &mut config.device_stall);
        number("SCIF_DMA_MIN", lookup("SCIF_DMA_MIN"), &mut config.dma_min);
        config.dma_min_is_set =
            lookup("SCIF_DMA_MIN").is_some_and(|text| text.parse() == Ok(config.dma_min));
        match lookup("SCIF_DMA_CHANNELS").map(|v| (v.parse(), v)) {
            None => {}
            Some((Ok(n), _)) if DMA_CHANNELS.contains(&n) => config.dma_channels = n,
            Some((_, value)) => warn("SCIF_DMA_CHANNELS", &value, "a number from 1 to 16"),
        }
        match lookup("SCIF_NODE_LOST").as_deref() {
            None | Some("absent") => {}
            Some("kill") => config.node_lost_kill = true,
            Some(value) => warn("SCIF_NODE_LOST", value, "absent or kill"),
        }
        if let Some(value) = lookup("SCIF_ALLOW_UIDS") {
            match value.split(',').map(|uid| uid.trim().parse()).collect() {
                Ok(uids) => config.allow_uids = uids,
                Err(_) => warn("SCIF_ALLOW_UIDS", &value, "user numbers separated by commas"),
            }
        }
        config.warnings = warnings;
        config
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(pairs: &[(&str, &str)]) -> Config {
        Config::from_lookup(|name| {
            pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn valid_values_are_used() {
        let config = with(&[
            ("SCIF_NODE", "7"),
            ("SCIF_RUNTIME_DIR", "/run/x"),
            ("SCIF_DOMAIN", "a-b"),
            ("SCIF_PTRACER", "0"),
            ("SCIF_ALLOW_UIDS", "1, 2"),
            ("SCIF_TRANSPORT", "kernel"),
            ("SCIF_DEVICE", "/dev/mic/scif"),
            ("SCIF_MEMLOCK", "1"),
            ("SCIF_LOG", "Debug"),
        ]);
        assert_eq!((config.memlock, config.log), (true, log::LevelFilter::Debug));
        assert_eq!(config.carrier, Carrier::Kernel);
        assert_eq!(config.device, Some(PathBuf::from("/dev/mic/scif")));
        assert_eq!((config.node, config.ptracer), (7, false));
        assert_eq!(config.runtime_dir, Some(PathBuf::from("/run/x")));
        assert_eq!(config.domain.as_deref(), Some("a-b"));
        assert_eq!(config.allow_uids, [1, 2]);
        assert!(config.warnings.is_empty());
    }

    #[test]
    fn variables_of_the_scientific_filesystem_are_not_misspelt_settings() {
        let set =
            ["SCIF_DATA", "SCIF_APPNAME_foo", "SCIF_ENTRYPOINT", "SCIF_DOMIAN"].map(str::to_owned);
        let warnings = Config::unknown(set.into_iter());
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].starts_with("SCIF_DOMIAN "));
        assert_eq!(Config::names().iter().find(|n| is_of_scientific_filesystem(n)), None);
    }

    #[test]
    fn invalid_values_warn_and_change_nothing() {
        let config = with(&[
            ("SCIF_NODE", "70000"),
            ("SCIF_DOMAIN", "a/b"),
            ("SCIF_PTRACER", "maybe"),
            ("SCIF_ALLOW_UIDS", "1,x"),
            ("SCIF_TRANSPORT", "pcie"),
            ("SCIF_MEMLOCK", "8M"),
            ("SCIF_LOG", "loud"),
        ]);
        assert_eq!((config.memlock, config.log), (false, log::LevelFilter::Warn));
        assert_eq!(config.carrier, Carrier::Auto);
        assert_eq!((config.node, config.ptracer, config.domain), (0, true, None));
        assert!(config.allow_uids.is_empty());
        assert_eq!(config.warnings.len(), 7);
        for (value, channels) in
            [("0", None), ("1", Some(1)), ("16", Some(16)), ("17", None), ("x", None)]
        {
            let config = with(&[("SCIF_DMA_CHANNELS", value)]);
            assert_eq!(config.dma_channels, channels.unwrap_or(1), "{value}");
            assert_eq!(config.warnings.is_empty(), channels.is_some(), "{value}");
        }
    }
}
