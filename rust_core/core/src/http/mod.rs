//! HTTP/1.1 without sockets and without a clock: reading answers and requests, and which request is on which connection.
//!
//! An [`AnswerReader`] reads what one connection of a client brings, a [`RequestReader`] what one of a server brings. An [`ExchangeTable`] knows all requests of a client that have no
//! answer yet, its connections by number, and when anything is late. Whoever holds the sockets tells it what they bring
//! and what became of them, and once a pass of the event loop takes out what has landed or failed and what to open,
//! write and close. Time is an argument everywhere.

mod answer;
mod buffers;
mod chunks;
mod fault;
mod framing;
mod headers;
mod pool;
mod request;
mod section;
mod table;
mod traffic;

pub use answer::{Answer, AnswerReader, HEAD_LIMIT};
pub use buffers::BufferPool;
pub use fault::Fault;
pub use headers::{Headers, request_head};
pub use request::{Refused, Request, RequestReader, RequestState};
pub use table::ExchangeTable;
pub use traffic::{Actions, Failed, HttpLimits, Landed, Micros, Write};
