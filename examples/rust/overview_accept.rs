// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Process A of the overview of SCIF, as in `overview_accept.c`: listens on port 2050 and exchanges
//! messages. It registers a page that the peer writes by RMA, maps a page of the peer, and waits
//! for the peer's fence signal.
#![expect(clippy::print_stdout, reason = "an example")]

use std::error::Error;
use std::time::Duration;

use scif::Config;
use scif_api::{Endpoints, Pages};

const PORT: u16 = 2050;
const PAGE: usize = 4096;
const OFFSET: i64 = 0x10000;
const READ_WRITE: i32 = 3;
const FIXED: i32 = 0x10;
const TEXT: &[u8] = b"through the window\0";

fn main() -> Result<(), Box<dyn Error>> {
    let scif = Endpoints::new(Config::from_env())?;
    let (nodes, own) = scif.nodes()?;
    println!("accept: node {own}, {} online", nodes.len());

    let listener = scif.open()?;
    scif.bind(listener, PORT)?;
    scif.listen(listener, 1)?;
    let (peer, epd) = scif.accept(listener, true)?;

    let mut message = [0; 6];
    scif.receive_bytes(epd, &mut message, true)?;
    let message = String::from_utf8_lossy(&message);
    println!("accept: node {} says {}", peer.node, message.trim_end_matches('\0'));

    // A page that the peer writes: data at the front, the signal at its end.
    let page = Pages::new(PAGE)?;
    scif.register(epd, (page.addr(), PAGE), OFFSET, READ_WRITE, FIXED)?;
    scif.send_bytes(epd, &[1], true)?;
    while page.load(PAGE - 8)? != 42 {
        std::thread::sleep(Duration::from_micros(100));
    }
    let mut text = [0; TEXT.len()];
    page.read(0, &mut text)?;
    println!("accept: written by RMA: {}", String::from_utf8_lossy(&text));
    assert_eq!(text, TEXT);

    // Maps the page of the peer.
    scif.receive_bytes(epd, &mut [0], true)?;
    let mapped = scif.map_pages(epd, PAGE, OFFSET, true)?;
    mapped.read(0, &mut text)?;
    println!("accept: seen through the mapping: {}", String::from_utf8_lossy(&text));
    assert_eq!(text, TEXT);
    mapped.write(PAGE - 1, &[7])?;
    drop(mapped);
    scif.send_bytes(epd, &[1], true)?;

    scif.unregister(epd, OFFSET, PAGE)?;
    scif.close(epd)?;
    Ok(scif.close(listener)?)
}
