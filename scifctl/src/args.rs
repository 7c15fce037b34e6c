// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Parser of the command line. Not about the effect of the commands.

use std::str::FromStr;

use scif::PortId;

use crate::{Problem, Result};

/// Objects to show.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum What {
    Nodes,
    Endpoints,
    Connections,
    Windows,
}

/// Command of the user.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Command {
    Help,
    Version,
    Show(What),
    Ping(u16),
    Bandwidth(Option<PortId>),
    Serve(u16),
    Lose(u16),
    /// Command that `Lose` starts: keeps the node lost.
    Hold(u16),
    Restore(u16),
}

/// Command with its options.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Args {
    pub(crate) command: Command,
    pub(crate) json: bool,
    /// Whether each window is listed, instead of a summary.
    pub(crate) all: bool,
    /// Seconds between two displays.
    pub(crate) live: Option<f64>,
    pub(crate) count: Option<u64>,
    pub(crate) node: Option<u16>,
    pub(crate) max_bytes: usize,
    pub(crate) progress: bool,
}

fn number<T: FromStr>(what: &str, word: Option<&str>) -> Result<T> {
    let word = word.ok_or_else(|| Problem::Usage(format!("{what} is missing")))?;
    word.parse()
        .map_err(|_| Problem::Usage(format!("{what} cannot be {word}")))
}

fn port_id(word: &str) -> Result<PortId> {
    let (node, port) = word
        .split_once(':')
        .ok_or_else(|| Problem::Usage(format!("NODE:PORT cannot be {word}")))?;
    Ok(PortId {
        node: number("NODE", Some(node))?,
        port: number("PORT", Some(port))?,
    })
}

impl Args {
    pub(crate) fn parse(words: impl Iterator<Item = String>) -> Result<Args> {
        let mut args = Args {
            command: Command::Help,
            json: false,
            all: false,
            live: None,
            count: None,
            node: None,
            max_bytes: 4 << 20,
            progress: false,
        };
        let mut plain = Vec::new();
        let (mut help, mut version, mut serve) = (false, false, None);
        let mut named = Vec::new();
        for word in words {
            let Some(option) = word.strip_prefix("--") else {
                plain.push(word);
                continue;
            };
            let (name, value) = match option.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (option, None),
            };
            match (name, value) {
                ("help", None) => help = true,
                ("version", None) => version = true,
                ("json", None) => args.json = true,
                ("all", None) => args.all = true,
                ("progress", None) => args.progress = true,
                ("live", None) => args.live = Some(1.0),
                ("live", value) => args.live = Some(number("the interval", value)?),
                ("count", value) => args.count = Some(number("the count", value)?),
                ("node", value) => args.node = Some(number("the node", value)?),
                ("max", value) => args.max_bytes = number("the size", value)?,
                ("serve", None) => serve = Some(0),
                ("serve", value) => serve = Some(number("the port", value)?),
                _ => return Err(Problem::Usage(format!("there is no option --{option}"))),
            }
            named.push(name.to_owned());
        }
        let words: Vec<&str> = plain.iter().map(String::as_str).collect();
        let (command, options): (Command, &[&str]) = match *words.as_slice() {
            _ if help => (Command::Help, &["help", "version"]),
            _ if version => (Command::Version, &["version"]),
            [] => return Err(Problem::Usage("a command is missing".to_owned())),
            ["nodes"] => (Command::Show(What::Nodes), SHOWING),
            ["endpoints"] => (Command::Show(What::Endpoints), SHOWING),
            ["connections"] => (Command::Show(What::Connections), SHOWING),
            ["windows"] => (Command::Show(What::Windows), SHOWING_WINDOWS),
            ["ping", node] => (Command::Ping(number("NODE", Some(node))?), &["count", "json"]),
            ["bw"] if serve.is_some() => (Command::Serve(serve.unwrap_or(0)), &["serve"]),
            ["bw"] => (Command::Bandwidth(None), MEASURING),
            ["bw", to] => (Command::Bandwidth(Some(port_id(to)?)), MEASURING),
            ["node", "lose", node] => (Command::Lose(number("N", Some(node))?), &[]),
            ["node", "hold", node] => (Command::Hold(number("N", Some(node))?), &[]),
            ["node", "restore", node] => (Command::Restore(number("N", Some(node))?), &[]),
            [..] => return Err(Problem::Usage(format!("cannot do '{}'", words.join(" ")))),
        };
        if let Some(name) = named
            .iter()
            .find(|name| !help && !options.contains(&name.as_str()))
        {
            return Err(Problem::Usage(format!("--{name} says nothing here")));
        }
        if args.live.is_some_and(|s| !(0.01..=86400.0).contains(&s)) {
            return Err(Problem::Usage("the interval is out of range".to_owned()));
        }
        if !(1..=1 << 30).contains(&args.max_bytes) {
            return Err(Problem::Usage("the size is out of range".to_owned()));
        }
        args.command = command;
        Ok(args)
    }
}

const SHOWING: &[&str] = &["json", "live", "count", "node"];
const SHOWING_WINDOWS: &[&str] = &["json", "live", "count", "node", "all"];
const MEASURING: &[&str] = &["json", "max", "progress"];

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Option<Args> {
        Args::parse(line.split_whitespace().map(str::to_owned)).ok()
    }

    #[test]
    fn good_lines_are_understood() {
        let command = |line: &str| parse(line).unwrap().command;
        assert_eq!(command("nodes --json"), Command::Show(What::Nodes));
        assert_eq!(command("ping 3"), Command::Ping(3));
        assert_eq!(
            command("bw 1:2050 --max=4096"),
            Command::Bandwidth(Some(PortId { node: 1, port: 2050 }))
        );
        assert_eq!(command("bw --serve=2050"), Command::Serve(2050));
        assert_eq!(command("node lose 2"), Command::Lose(2));
        assert_eq!(command("nodes --help"), Command::Help);
        assert!(parse("windows --all").unwrap().all);
        let live = parse("windows --live=0.5 --count=3 --node=7").unwrap();
        assert_eq!((live.live, live.count, live.node), (Some(0.5), Some(3), Some(7)));
    }

    #[test]
    fn bad_lines_are_refused() {
        for line in [
            "",
            "dance",
            "ping",
            "ping x",
            "ping 70000",
            "nodes --max=3",
            "nodes --live=0",
            "bw 1",
            "bw --max=0",
            "node lose",
            "node lose 1 2",
            "nodes --wide",
            "nodes --all",
            "node lose 1 --json",
        ] {
            assert!(parse(line).is_none(), "{line}");
        }
    }
}
