// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Connection management records, which the first connection between two endpoints carries.

use scif::Connection;

use crate::base::attr::CM_DATA_SIZE;
use crate::engine::types::wire::{self, Head, Words};

/// Content of a connection management record.
#[derive(Debug)]
pub(crate) struct CmMessage {
    pub kind: u8,
    pub number: u64,
    pub data: Vec<u8>,
}

/// Sends record `kind` for request `number` over a new connection, whose ring has space.
pub(crate) fn send_msg(conn: &mut Connection, kind: u8, number: u64, data: &[u8]) -> bool {
    let head = Head::new().word(number);
    let is_sent = conn.tx().push_slice(kind, head.as_slice(), data).is_ok();
    conn.notify();
    is_sent
}

/// Returns the next connection management record. Any other record is an error.
pub(crate) fn recv_msg(conn: &mut Connection) -> Result<Option<CmMessage>, ()> {
    let Some(record) = conn.rx().peek().map_err(|_| ())? else {
        return Ok(None);
    };
    if record.kind & 0xf0 != wire::CM || record.body.len() > CM_DATA_SIZE {
        return Err(());
    }
    let mut data = vec![0; record.body.len()];
    record.body.copy_to_slice(&mut data);
    let message = CmMessage {
        kind: record.kind,
        number: Words::new(&record.head, record.head_len).word(),
        data,
    };
    conn.rx().advance();
    Ok(Some(message))
}
