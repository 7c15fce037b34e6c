// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Check of the SCIF driver of this system.

use scif::{Carrier, Device};

use super::finding::Finding;
use super::inputs::Inputs;

const SUBJECT: &str = "driver";

/// Returns the setting that requires a driver, if any.
fn required(inputs: &Inputs) -> Option<&'static str> {
    if inputs.env.is("FI_SCIF_TRANSPORT", "kernel") {
        return Some("FI_SCIF_TRANSPORT=kernel");
    }
    (inputs.config.carrier == Carrier::Kernel).then_some("SCIF_TRANSPORT=kernel")
}

/// Whether a device that opens would be used.
fn wanted(inputs: &Inputs) -> bool {
    inputs.env.is("FI_SCIF_TRANSPORT", "auto") || inputs.config.carrier == Carrier::Auto
}

pub(crate) fn check(inputs: &Inputs) -> Vec<Finding> {
    let action = |setting: &str| {
        let name = setting.split('=').next().unwrap_or(setting);
        format!("load the driver and give access to its device (SCIF_DEVICE), or {name}=soft")
    };
    let found = match (Device::open(&inputs.config), required(inputs)) {
        (Ok(device), setting) => {
            let name = format!("{:?} at {}", device.driver(), device.path().to_string_lossy());
            match (device.works(), setting) {
                (true, _) => Finding::ok(SUBJECT, format!("{name}, with nodes")),
                (false, None) => {
                    let text = format!("{name}, no node online: shared memory is used");
                    Finding::ok(SUBJECT, text)
                }
                (false, Some(setting)) => {
                    let text = format!("{name} has no node online, but {setting} requires one");
                    Finding::broken(SUBJECT, text, action(setting))
                }
            }
        }
        (Err(failure), None) if failure.raw_os_error() != libc::ENOENT && wanted(inputs) => {
            Finding::slower(
                SUBJECT,
                format!("a device exists but does not open ({failure}): shared memory is used"),
                "give access to the device, correct SCIF_DEVICE, or SCIF_TRANSPORT=soft",
            )
        }
        (Err(_), None) => Finding::ok(SUBJECT, "none, and none is required: shared memory is used"),
        (Err(failure), Some(setting)) => Finding::broken(
            SUBJECT,
            format!("no device opens ({failure}), but {setting} requires one: nothing can connect"),
            action(setting),
        ),
    };
    vec![found]
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use scif::Config;

    use super::*;
    use crate::doctor::env::Environment;
    use crate::doctor::finding::State;

    #[test]
    fn a_missing_driver_matters_only_if_it_is_required() {
        let device = Some(PathBuf::from("/nonexistent"));
        let inputs = |env: &[(&str, &str)], carrier| Inputs {
            root: PathBuf::from("/"),
            env: Environment::of(env),
            config: Config { device: device.clone(), carrier, ..Config::default() },
        };
        assert_eq!(check(&inputs(&[], Carrier::Auto))[0].state, State::Ok);
        let other = |carrier| Inputs {
            root: PathBuf::from("/"),
            env: Environment::default(),
            config: Config { device: Some("/dev/null".into()), carrier, ..Config::default() },
        };
        let found = &check(&other(Carrier::Auto))[0];
        assert!(found.state == State::Slower && found.meaning.contains("does not open"));
        assert_eq!(check(&other(Carrier::Soft))[0].state, State::Ok);
        for (env, carrier, name) in [
            (&[][..], Carrier::Kernel, "or SCIF_TRANSPORT=soft"),
            (&[("FI_SCIF_TRANSPORT", "kernel")][..], Carrier::Auto, "or FI_SCIF_TRANSPORT=soft"),
        ] {
            let found = &check(&inputs(env, carrier))[0];
            assert_eq!(found.state, State::Broken);
            assert!(found.action.ends_with(name), "{}", found.action);
        }
    }
}
