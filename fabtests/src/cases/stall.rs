// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Sends that a driver fails with ENODEV after 3 s, although the peer gets their bytes: the
//! stand-in driver makes every n-th one of a process do so (`SCIF_DEVICE_STALL`).

use scif_fabtests::prelude::*;

pub(crate) const CASES: &[Case] =
    &[case("stall/no_message_comes_twice", 2, twice).under(&[("SCIF_DEVICE_STALL", "200")])];

/// Tests that each send ends, with success or ECONNRESET, and that no message arrives twice.
fn twice(rank: &Rank) -> Outcome {
    const MESSAGES: u64 = 700;
    if std::env::var_os("SCIF_DEVICE_TRAPS").is_none() {
        return Err(Fail::NotHere("no stand-in driver with traps".into()));
    }
    // No page moves into a window then, so that records cross the stream.
    scif_fabtests::harness::seccomp::deny(&[libc::SYS_userfaultfd])?;
    let rig = Rig::open(rank, &Spec::messages(false))?;
    if rank.index == 0 {
        let mut reset = 0;
        for number in 1..=MESSAGES {
            rig.post(|| rig.ep.send(Buf::of(&number.to_ne_bytes()), rig.peer(), 1))?;
            match rig.wait("the end of a send", || Ok(rig.tx.take()))? {
                Ok(_) => {}
                Err(error) if error.err == Errno::ECONNRESET => reset += 1,
                Err(error) => return Err(Fail::here(format_args!("{error:?}"))),
            }
        }
        rank.step(format_args!("{reset} sends were reset"));
        return rig.barrier();
    }
    let to = Buf::new(8);
    let post = || rig.post(|| rig.ep.recv(to, sys::FI_ADDR_UNSPEC, 2));
    post()?;
    let (mut last, mut lost) = (0, 0);
    rank.barrier(&mut || {
        rig.pump()?;
        while let Some(ended) = rig.rx.take() {
            ended.map_err(|error| Fail::here(format_args!("{error:?}")))?;
            let number = to.load_u64(0);
            check!(number > last, "{number} came after {last}");
            lost += number - last - 1;
            last = number;
            post()?;
        }
        Ok(())
    })?;
    rank.step(format_args!("{lost} messages were lost"));
    check!(last > MESSAGES / 2, "the connection was not made again after {last}");
    Ok(())
}
