// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! A server that waits for requests and messages of several clients at once, as in `poll.c`. The
//! clients are processes that it starts from the same program.
#![expect(clippy::print_stdout, reason = "an example")]

use std::error::Error;
use std::process::Command;
use std::time::Duration;

use scif::{Config, PortId};
use scif_api::{Endpoints, Failure, PollFd};

const CLIENTS: u8 = 3;
const PORT: u16 = 2051;
const IN: i16 = 1;
const HUP: i16 = 0x10;

fn entry(fd: i32) -> PollFd {
    PollFd { fd, events: IN, revents: 0 }
}

fn client(scif: &Endpoints, number: u8) -> Result<(), Box<dyn Error>> {
    let epd = scif.open()?;
    while let Err(failure) = scif.connect(epd, PortId::new(0, PORT)) {
        if failure != Failure::Refused {
            return Err(failure.into());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    scif.send_bytes(epd, &[number], true)?;
    scif.poll(&mut [entry(epd)], -1)?;
    // Not blocking, because the byte has arrived.
    let mut byte = [0];
    assert_eq!(scif.receive_bytes(epd, &mut byte, false)?, 1);
    assert_eq!(byte, [number + 100]);
    Ok(scif.close(epd)?)
}

fn main() -> Result<(), Box<dyn Error>> {
    let scif = Endpoints::new(Config::from_env())?;
    if let Some(number) = std::env::args().nth(1) {
        return client(&scif, number.parse()?);
    }
    let program = std::env::current_exe()?;
    let clients = (1..=CLIENTS)
        .map(|number| Command::new(&program).arg(number.to_string()).spawn())
        .collect::<Result<Vec<_>, _>>()?;
    let listener = scif.open()?;
    scif.bind(listener, PORT)?;
    scif.listen(listener, CLIENTS.into())?;
    let mut set = vec![entry(listener)];
    let mut done = 0;
    while done < CLIENTS {
        scif.poll(&mut set, -1)?;
        let mut kept = Vec::new();
        for item in set {
            let mut byte = [0];
            if item.fd == listener {
                let called = item.revents & IN != 0;
                let accepted = called.then(|| scif.accept(listener, false));
                kept.extend(accepted.and_then(Result::ok).map(|(_, epd)| entry(epd)));
                kept.push(item);
            } else if item.revents & IN != 0 && scif.receive_bytes(item.fd, &mut byte, false)? == 1
            {
                scif.send_bytes(item.fd, &[byte[0] + 100], true)?;
                kept.push(item);
            } else if item.revents & HUP != 0 {
                scif.close(item.fd)?;
                done += 1;
            } else {
                kept.push(item);
            }
        }
        set = kept;
    }
    scif.close(listener)?;
    for mut client in clients {
        assert!(client.wait()?.success());
    }
    println!("poll: {done} clients served");
    Ok(())
}
