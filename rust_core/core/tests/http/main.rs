//! HTTP: answers and requests however they are cut, against what they were made from; and the table in a world of servers that answer,
//! break off, fall silent and send what nothing asked for.
#![allow(missing_docs)]
#![allow(clippy::unwrap_used)]

mod crowd;
mod reader;
mod requests;
mod world;
