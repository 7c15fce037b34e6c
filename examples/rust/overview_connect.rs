// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Process B of the overview of SCIF, as in `overview_connect.c`: connects to port 2050 of the node
//! given on the command line and sends a message. It writes into the peer's window by RMA, and
//! signals the end of the write by a fence.
#![expect(clippy::print_stdout, reason = "an example")]

use std::error::Error;
use std::time::Duration;

use scif::{Config, PortId};
use scif_api::{Endpoints, Failure, FenceSide, Pages, Signal};

const PORT: u16 = 2050;
const PAGE: usize = 4096;
const OFFSET: i64 = 0x10000;
const READ_WRITE: i32 = 3;
const FIXED: i32 = 0x10;

fn main() -> Result<(), Box<dyn Error>> {
    let node = std::env::args().nth(1).map_or(Ok(0), |word| word.parse())?;
    let scif = Endpoints::new(Config::from_env())?;
    let epd = scif.open()?;
    // The other program may not listen yet.
    while let Err(failure) = scif.connect(epd, PortId::new(node, PORT)) {
        if !matches!(failure, Failure::Refused | Failure::NoNode) {
            return Err(failure.into());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    scif.send_bytes(epd, b"hello\0", true)?;

    let page = Pages::new(PAGE)?;
    page.write(0, b"through the window\0")?;
    scif.register(epd, (page.addr(), PAGE), OFFSET, READ_WRITE, FIXED)?;

    // The peer's byte announces its window.
    scif.receive_bytes(epd, &mut [0], true)?;
    scif.write_to(epd, OFFSET, 64, OFFSET, 0)?;
    let mark = scif.fence_mark(epd, FenceSide::Own)?;
    scif.fence_wait(epd, mark)?;
    let there = Signal { offset: OFFSET + (PAGE as i64 - 8), value: 42 };
    scif.fence_signal(epd, FenceSide::Own, None, Some(there))?;

    // The peer now maps the page of this process and writes its last byte.
    scif.send_bytes(epd, &[1], true)?;
    scif.receive_bytes(epd, &mut [0], true)?;
    let mut last = [0];
    page.read(PAGE - 1, &mut last)?;
    println!("connect: the peer wrote {} through its mapping", last[0]);
    assert_eq!(last, [7]);
    Ok(scif.close(epd)?)
}
