// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Windows, RMA and fences, as in `windows.c`. A producer writes blocks into the peer's window
//! without waiting for each, and updates a counter behind them by a fence. The consumer is a
//! process that it starts from the same program.
#![expect(clippy::print_stdout, reason = "an example")]

use std::error::Error;
use std::process::Command;
use std::time::Duration;

use scif::{Config, PortId};
use scif_api::{Endpoints, Failure, FenceSide, Pages, Signal};

const PORT: u16 = 2053;
const PAGE: usize = 4096;
const BLOCK: usize = 256 << 10;
const BLOCKS: usize = 4;
const DATA: i64 = 0x10_0000;
const COUNTER: i64 = 0x1_0000;
const READ: i32 = 1;
const WRITE: i32 = 2;
const FIXED: i32 = 0x10;
const SYNC: i32 = 4;

type Outcome = Result<(), Box<dyn Error>>;

fn block(n: u64) -> Vec<u8> {
    (0..BLOCK as u64).map(|i| (n + i).to_le_bytes()[0]).collect()
}

/// Returns the offset of block `n` in the window.
fn place(n: u64) -> i64 {
    DATA + (n as i64 - 1) * BLOCK as i64
}

fn consume(scif: &Endpoints) -> Outcome {
    let epd = scif.open()?;
    while let Err(failure) = scif.connect(epd, PortId::new(0, PORT)) {
        if failure != Failure::Refused {
            return Err(failure.into());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let (data, counter) = (Pages::new(BLOCKS * BLOCK)?, Pages::new(PAGE)?);
    scif.register(epd, (data.addr(), data.len()), DATA, READ | WRITE, FIXED)?;
    scif.register(epd, (counter.addr(), PAGE), COUNTER, WRITE, FIXED)?;
    scif.send_bytes(epd, &[0], true)?;
    for n in 1..=BLOCKS as u64 {
        while counter.load(0)? < n {
            std::thread::sleep(Duration::from_micros(50));
        }
        let mut came = vec![0; BLOCK];
        data.read(usize::try_from(place(n) - DATA)?, &mut came)?;
        assert!(came == block(n), "block {n} came whole");
    }
    println!("windows: {BLOCKS} blocks came whole");
    scif.receive_bytes(epd, &mut [0], true)?;
    scif.unregister(epd, DATA, data.len())?;
    scif.send_bytes(epd, &[0], true)?;
    scif.receive_bytes(epd, &mut [0], true)?;
    Ok(scif.close(epd)?)
}

fn produce(scif: &Endpoints, epd: i32) -> Outcome {
    let (data, back) = (Pages::new(BLOCK)?, Pages::new(BLOCK)?);
    scif.register(epd, (data.addr(), BLOCK), DATA, READ, FIXED)?;
    scif.receive_bytes(epd, &mut [0], true)?;
    for n in 1..=BLOCKS as u64 {
        data.write(0, &block(n))?;
        // Started without a wait; the fence writes the counter when the block is written.
        scif.write_to(epd, DATA, BLOCK, place(n), 0)?;
        let counted = Signal { offset: COUNTER, value: n };
        scif.fence_signal(epd, FenceSide::Own, None, Some(counted))?;
        // The program could do other work at this point. Before the next block the buffer must be
        // free again.
        let mark = scif.fence_mark(epd, FenceSide::Own)?;
        scif.fence_wait(epd, mark)?;
    }
    // Into memory that is no window.
    let last = place(BLOCKS as u64);
    scif.read_to_memory(epd, back.addr(), BLOCK, last, SYNC)?;
    let mut came = vec![0; BLOCK];
    back.read(0, &mut came)?;
    assert!(came == block(BLOCKS as u64), "read back");
    // The counter may only be written.
    let refused = scif.read_to_memory(epd, back.addr(), 8, COUNTER, SYNC);
    assert_eq!(refused, Err(Failure::NotPermitted));
    scif.send_bytes(epd, &[0], true)?;
    scif.receive_bytes(epd, &mut [0], true)?;
    let gone = scif.read_to_memory(epd, back.addr(), 8, DATA, SYNC);
    assert_eq!(gone, Err(Failure::NoWindow));
    println!("windows: read back, refused and gone");
    scif.send_bytes(epd, &[0], true)?;
    Ok(scif.close(epd)?)
}

fn main() -> Outcome {
    let scif = Endpoints::new(Config::from_env())?;
    if std::env::args().nth(1).is_some() {
        return consume(&scif);
    }
    let listener = scif.open()?;
    scif.bind(listener, PORT)?;
    scif.listen(listener, 1)?;
    let mut consumer = Command::new(std::env::current_exe()?).arg("consume").spawn()?;
    let (_, epd) = scif.accept(listener, true)?;
    scif.close(listener)?;
    produce(&scif, epd)?;
    assert!(consumer.wait()?.success());
    Ok(())
}
