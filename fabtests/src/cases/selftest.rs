// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Cases for the harness itself: ranks that hang, crash, fail, are killed and restart. No
//! libfabric.

use scif_fabtests::prelude::*;

pub(crate) const CASES: &[Case] = &[
    case("harness/meets", 3, meets),
    case("harness/fails", 2, fails),
    case("harness/crashes", 2, crashes),
    case("harness/hangs", 2, hangs).within(1),
    case("harness/kills_and_respawns", 2, kills_and_respawns),
    case("harness/forks", 2, forks),
    case("harness/denies", 1, denies),
    case("harness/lacks", 2, lacks),
    case("harness/is_too_new", 2, is_too_new),
    case("harness/reads_freed_memory", 1, |_| {
        sandbox::read_freed_memory();
        Ok(())
    }),
    case("harness/loses_memory", 1, |_| {
        sandbox::lose_memory();
        Ok(())
    }),
];

fn meets(rank: &Rank) -> Outcome {
    rank.barrier(&mut || Ok(()))?;
    let mine = [u8::try_from(rank.index).map_err(Fail::here)?; 3];
    let all = rank.exchange(&mine, &mut || Ok(()))?;
    check_eq!(all, vec![vec![0; 3], vec![1; 3], vec![2; 3]]);
    rank.barrier(&mut || Ok(()))
}

fn fails(rank: &Rank) -> Outcome {
    check!(rank.index == 0, "rank {} fails on purpose", rank.index);
    rank.barrier(&mut || Ok(()))
}

fn crashes(rank: &Rank) -> Outcome {
    rank.step("about to crash");
    if rank.index == 1 {
        std::process::abort();
    }
    rank.barrier(&mut || Ok(()))
}

fn hangs(rank: &Rank) -> Outcome {
    if rank.index == 1 {
        rank.step("sleeping on purpose");
        std::thread::sleep(std::time::Duration::from_secs(30));
    }
    rank.barrier(&mut || Ok(()))
}

fn kills_and_respawns(rank: &Rank) -> Outcome {
    if rank.life == 0 {
        rank.barrier(&mut || Ok(()))?;
        if rank.index == 1 {
            loop {
                std::thread::park();
            }
        }
        rank.kill(1)?;
        rank.barrier(&mut || Ok(()))?;
        check_eq!(rank.exchange(&[7], &mut || Ok(()))?, vec![vec![7], vec![]]);
        rank.respawn(1)?;
    }
    let all = rank.exchange(&[u8::try_from(rank.life).map_err(Fail::here)?], &mut || Ok(()))?;
    check_eq!(all, vec![vec![0], vec![1]]);
    Ok(())
}

fn forks(rank: &Rank) -> Outcome {
    if rank.index == 1 {
        sandbox::fork_sleeper()?;
        rank.expect_death()?;
        rank.barrier(&mut || Ok(()))?;
        return sandbox::die();
    }
    rank.barrier(&mut || Ok(()))
}

fn denies(_: &Rank) -> Outcome {
    let local = std::fs::read("/proc/self/comm")?;
    check!(!local.is_empty());
    sandbox::deny_process_vm()?;
    sandbox::limit_open_files(40)?;
    check!(sandbox::open_files()? < 40);
    Ok(())
}

fn lacks(_: &Rank) -> Outcome {
    Err(Fail::NotRun("nothing to run".into()))
}

fn is_too_new(rank: &Rank) -> Outcome {
    needs_library(rank, 0, "every library has it")?;
    needs_library(rank, version(999, 0), "no library has it")
}
