// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Mapped memory of a peer, as in `mmap.c`. Two processes pass a number back and forth, without a
//! call, through a page that one has registered and the other has mapped. The mapping outlives the
//! window and the connection. The mapping process is started by the owner from the same program.
#![expect(clippy::print_stdout, reason = "an example")]

use std::error::Error;
use std::process::Command;

use scif::{Config, PortId};
use scif_api::{Endpoints, Failure, Pages};

const PORT: u16 = 2054;
const PAGE: usize = 4096;
const OFFSET: i64 = 0x10000;
const READ_WRITE: i32 = 3;
const FIXED: i32 = 0x10;
const TURNS: u64 = 1000;
/// Offsets of the number and of the text in the page.
const NUMBER: usize = 0;
const TEXT: usize = 64;

type Outcome = Result<(), Box<dyn Error>>;

fn await_turn(page: &Pages, turn: u64) -> Result<(), Failure> {
    while page.load(NUMBER)? != turn {
        std::thread::yield_now();
    }
    Ok(())
}

/// Takes every second turn.
fn play(page: &Pages, first: u64) -> Result<(), Failure> {
    for turn in (first..TURNS).step_by(2) {
        await_turn(page, turn)?;
        page.store(NUMBER, turn + 1)?;
    }
    Ok(())
}

fn map(scif: &Endpoints) -> Outcome {
    let epd = scif.open()?;
    scif.connect(epd, PortId::new(0, PORT))?;
    scif.receive_bytes(epd, &mut [0], true)?;
    // More than the window is refused.
    let more = scif.map_pages(epd, 2 * PAGE, OFFSET, true);
    assert_eq!(more.err(), Some(Failure::NoWindow));
    let page = scif.map_pages(epd, PAGE, OFFSET, true)?;
    play(&page, 1)?;
    // The owner deletes the window and closes.
    assert_eq!(scif.receive_bytes(epd, &mut [0], true), Err(Failure::Reset));
    let mut text = [0; 10];
    page.read(TEXT, &mut text)?;
    println!("mmap: after the end of the connection: {}", String::from_utf8_lossy(&text));
    assert_eq!(&text, b"still here");
    Ok(scif.close(epd)?)
}

fn main() -> Outcome {
    let scif = Endpoints::new(Config::from_env())?;
    if std::env::args().nth(1).is_some() {
        return map(&scif);
    }
    let listener = scif.open()?;
    scif.bind(listener, PORT)?;
    scif.listen(listener, 1)?;
    let mut mapper = Command::new(std::env::current_exe()?).arg("map").spawn()?;
    let (_, epd) = scif.accept(listener, true)?;
    let page = Pages::new(PAGE)?;
    scif.register(epd, (page.addr(), PAGE), OFFSET, READ_WRITE, FIXED)?;
    scif.send_bytes(epd, &[0], true)?;
    play(&page, 0)?;
    await_turn(&page, TURNS)?;
    println!("mmap: {TURNS} turns");
    page.write(TEXT, b"still here")?;
    scif.unregister(epd, OFFSET, PAGE)?;
    scif.close(epd)?;
    scif.close(listener)?;
    assert!(mapper.wait()?.success());
    Ok(())
}
