// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Connection request that a passive endpoint received and the application has not answered.

use std::sync::Arc;

use scif::{ConnId, PortId};

use crate::base::addr::ADDR_LEN;
use crate::engine::types::wire;

/// Receiver of requests, which sends the answers.
pub(crate) trait Responder: Send + Sync {
    /// Ends a request with a message of `kind`, so that the caller gets an answer.
    fn finish(&self, conn: ConnId, kind: u8, number: u64, data: &[u8]);
}

scif::debug_by_name!(Responder);

/// Connection request that can be answered; dropping it rejects the request.
#[derive(Debug)]
pub(crate) struct ConnRequest {
    pub(crate) pep: Arc<dyn Responder>,
    pub(crate) conn: ConnId,
    /// Port of the caller, and number of its request.
    pub(crate) from: PortId,
    pub(crate) number: u64,
    /// Address of the passive endpoint, which the accepting endpoint uses as its own.
    pub(crate) name: [u8; ADDR_LEN],
    /// Whether the caller got an answer.
    pub(crate) answered: bool,
}

impl ConnRequest {
    /// Rejects the request, with data of the application.
    pub(crate) fn refuse(mut self, data: &[u8]) {
        self.answered = true;
        self.pep.finish(self.conn, wire::CM_REJECT, self.number, data);
    }

    /// Reports that another connection is on its way.
    pub(crate) fn taken(mut self) {
        self.answered = true;
        self.pep.finish(self.conn, wire::CM_TAKEN, self.number, &[]);
    }
}

impl Drop for ConnRequest {
    fn drop(&mut self) {
        if !self.answered {
            self.pep.finish(self.conn, wire::CM_REJECT, self.number, &[]);
        }
    }
}
