// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Connections that this side ends because of the behaviour of the peer: invalid records, records
//! that caused a panic, accesses that never end.
//!
//! Not here: peers that exceed their memory limits (`unexpected`), and the effects of an ended
//! connection (`progress`).

use std::panic::{AssertUnwindSafe, catch_unwind};

use scif::{ConnId, Reason};

use super::envelope::RecordError;
use super::peer_id::PeerId;
use super::{Env, EpState};
use crate::base::log::{Subsys, warn_about_peer};

impl EpState {
    /// Handles the next record of a ring on the slow path. Returns false if there is none, or the
    /// connection is gone.
    #[inline(never)]
    pub(super) fn take_any(&mut self, env: &mut Env<'_>, conn: ConnId, peer: PeerId) -> bool {
        let Some(c) = self.links.conn(conn) else {
            return false;
        };
        match c.rx().peek() {
            Ok(None) => return false,
            Ok(Some(record)) => {
                // Inner panic boundary, inside that of the call: a peer that causes a panic ends
                // only its own connection.
                let handled =
                    catch_unwind(AssertUnwindSafe(|| self.on_record(env, conn, peer, &record)));
                if matches!(handled, Ok(Ok(()))) {
                    if let Some(c) = self.links.conn(conn) {
                        c.rx().advance();
                    }
                    return true;
                }
                // Done before anything else is received, since the end of a connection drains
                // others.
                self.free_unmatched();
                match handled {
                    Ok(Err(RecordError::NoMemory)) => {
                        self.end_for_memory(env, conn, peer);
                        return false;
                    }
                    Ok(_) => {}
                    Err(_) => {
                        self.end_for_panic(env, conn, peer);
                        return false;
                    }
                }
            }
            Err(_) => {}
        }
        self.corrupt(env, conn, peer);
        false
    }

    #[cold]
    fn corrupt(&mut self, env: &mut Env<'_>, conn: ConnId, peer: PeerId) {
        let port = self.peers.at(peer).id;
        warn_about_peer(
            Subsys::EpData,
            format_args!(
                "peer {port} wrote an invalid record into its ring; connection reset. Check that \
                 both sides have the same version"
            ),
        );
        self.lose(env, conn, Reason::Corrupt);
    }

    /// Ends a connection after one of its records caused a panic.
    #[cold]
    fn end_for_panic(&mut self, env: &mut Env<'_>, conn: ConnId, peer: PeerId) {
        let id = self.peers.at(peer).id;
        warn_about_peer(
            Subsys::EpData,
            format_args!(
                "internal error while a record of peer {id} was handled; connection reset"
            ),
        );
        self.lose(env, conn, Reason::Corrupt);
    }

    /// Ends the connections of peers that do not leave key slot `slot`.
    #[cold]
    pub(super) fn expel(&mut self, env: &mut Env<'_>, slot: u32) {
        let inside: Vec<ConnId> = self.links.conns_accessing(slot).collect();
        for conn in inside {
            if let Some(c) = self.links.conn(conn) {
                let (port, pid) = (c.peer(), c.peer_pid());
                warn_about_peer(
                    Subsys::EpData,
                    format_args!(
                        "process {pid} at {port} stays inside a memory region that is being closed; its connection is \
                         reset. Stopped in the middle of a copy, it will finish that copy when it is continued"
                    ),
                );
            }
            self.lose(env, conn, Reason::Reset);
        }
    }
}
