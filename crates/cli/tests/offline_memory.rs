//! The offline processing of memory through the binary: layers by hand, runs with and without a
//! model, recovery after `kill -9`, and the schedule.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]
#![cfg(unix)]

#[allow(dead_code)]
#[path = "../../agent/tests/support/answer_encoding.rs"]
mod answer_encoding;

#[allow(dead_code)]
#[path = "../../agent/tests/support/server.rs"]
mod server;

mod offline;
