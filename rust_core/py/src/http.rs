//! `ExchangeTable`, `RequestReader` and `request_head`.

use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::types::{PyBytes, PyDict, PyTuple};
use trunkline_core::Result;
use trunkline_core::http::{self, Actions, Failed, Fault, Headers, HttpLimits, Landed, Micros};

use crate::error::{raise, refine};
use crate::guard::Guard;
use crate::input::{Data, Text, Unsigned};

/// Bytes from which on reading takes tens of microseconds.
const LARGE: usize = 1 << 16;

/// Encode what all POST requests to one target have in common.
#[pyfunction]
#[pyo3(signature = (target, host, headers, /))]
pub fn request_head<'py>(
    py: Python<'py>,
    target: Text<'_>,
    host: Text<'_>,
    #[pyo3(from_py_with = pairs)] headers: Vec<(String, String)>,
) -> PyResult<Bound<'py, PyBytes>> {
    let headers: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let head = http::request_head(&target, &host, &headers).map_err(|error| raise(py, &error))?;
    Ok(PyBytes::new(py, &head))
}

fn pairs(headers: &Bound<'_, PyAny>) -> PyResult<Vec<(String, String)>> {
    let text = "a header holds a character that no header can carry";
    headers.extract().map_err(|error| refine(headers.py(), error, text))
}

/// Seconds as microseconds; those before the clock began and those after its end are its ends.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it saturates")]
pub const fn micros(seconds: f64) -> Micros {
    (seconds * 1e6) as Micros
}

#[expect(clippy::cast_precision_loss, reason = "microseconds of years are below 2**53")]
pub const fn seconds(micros: Micros) -> f64 {
    micros as f64 / 1e6
}

/// Token, status, headers, body, and seconds from sending to the head of the answer.
pub type Answered<'py> = (u64, u16, Bound<'py, PyDict>, Bound<'py, PyBytes>, f64);

/// Token, fault and its detail.
pub type Unanswered = (u64, &'static str, String);

/// Connections to open with their origins, requests to write, connections to check and to close, and when to come back.
pub type Deeds<'py> = (Vec<(u32, u32)>, Vec<Written<'py>>, Vec<u32>, Vec<u32>, Option<f64>);

/// A request to write: its connection, its token, bytes of it, and whether the connection was used before.
pub type Written<'py> = (u32, u64, Option<Bound<'py, PyBytes>>, bool);

/// Answers for Python.
pub fn answered(py: Python<'_>, landed: Vec<Landed>) -> PyResult<Vec<Answered<'_>>> {
    let landed = landed.into_iter().map(|Landed { token, answer, first, .. }| {
        let headers = headers(py, &answer.headers)?;
        Ok((token, answer.status, headers, PyBytes::new(py, &answer.body), seconds(first)))
    });
    landed.collect()
}

/// The headers of an answer; of equal names the first counts.
pub fn headers<'py>(py: Python<'py>, found: &Headers) -> PyResult<Bound<'py, PyDict>> {
    let headers = PyDict::new(py);
    for (name, value) in found.iter() {
        let name = PyBytes::new(py, name);
        if !headers.contains(&name)? {
            headers.set_item(name, PyBytes::new(py, value))?;
        }
    }
    Ok(headers)
}

/// A request without an answer for Python.
pub fn unanswered(Failed { token, fault, .. }: Failed) -> Unanswered {
    let (fault, detail) = fault_words(&fault);
    (token, fault, detail)
}

/// The name of a fault, and its detail.
pub fn fault_words(fault: &Fault) -> (&'static str, String) {
    let detail = match fault {
        Fault::TooLarge(announced) => announced.map_or_else(String::new, |announced| announced.to_string()),
        Fault::ConnectionBroke(reason) => reason.clone(),
        _ => String::new(),
    };
    (fault.as_str(), detail)
}

/// All requests of a client that have no answer yet, and its connections.
#[pyclass(frozen, module = "trunkline._core")]
pub struct ExchangeTable(Guard<http::ExchangeTable>, Mutex<Vec<u8>>);

impl ExchangeTable {
    /// Work on the table from inside the core.
    pub fn within<R>(&self, work: impl FnOnce(&mut http::ExchangeTable) -> Result<R>) -> Result<R> {
        self.0.within(work)
    }

    /// Whether bodies have come whose reading takes tens of microseconds.
    pub fn is_large(&self, py: Python<'_>) -> PyResult<bool> {
        self.0.with(py, |table| Ok(table.landed_bytes() > LARGE))
    }

    /// Take out what is to be done; `write` writes a request or its head, or says that it is asked for later.
    pub fn take_actions<'py>(
        &self,
        py: Python<'py>,
        now: Micros,
        write: impl Fn(u64, &http::ExchangeTable, &mut Vec<u8>) -> Result<bool>,
    ) -> PyResult<Deeds<'py>> {
        let (Actions { opens, writes, checks, closes }, data, sizes, due) = self.0.with(py, |table| {
            table.settle(now);
            let actions = table.take_actions();
            let mut data = Vec::new();
            let mut sizes = Vec::with_capacity(actions.writes.len());
            for one in &actions.writes {
                let start = data.len();
                sizes.push(write(one.token, table, &mut data)?.then_some(data.len() - start));
            }
            Ok((actions, data, sizes, table.due()))
        })?;
        let mut rest = &*data;
        let writes = writes.iter().zip(sizes).map(|(write, size)| {
            let bytes = size.map(|size| {
                let (bytes, others) = rest.split_at(size);
                rest = others;
                PyBytes::new(py, bytes)
            });
            (write.slot, write.token, bytes, write.used)
        });
        Ok((opens, writes.collect(), checks, closes, due.map(seconds)))
    }

    /// Tell the table something, and say whether anything is to be taken out of it.
    fn tell(&self, py: Python<'_>, tell: impl FnOnce(&mut http::ExchangeTable)) -> PyResult<bool> {
        self.0.with(py, |table| {
            tell(table);
            Ok(table.is_pending())
        })
    }
}

#[pymethods]
impl ExchangeTable {
    #[new]
    #[expect(clippy::too_many_arguments, reason = "they are options by keyword")]
    #[pyo3(signature = (size, largest, *, connect, accepted, keep, idle, patience, crowded))]
    fn new(
        size: Unsigned<u32>,
        largest: Unsigned<u64>,
        connect: f64,
        accepted: f64,
        keep: f64,
        idle: f64,
        patience: f64,
        crowded: f64,
    ) -> Self {
        let table = http::ExchangeTable::new(HttpLimits {
            size: size.0 as usize,
            largest: usize::try_from(largest.0).unwrap_or(usize::MAX),
            connect: micros(connect),
            accepted: micros(accepted),
            keep: micros(keep),
            idle: micros(idle),
            patience: micros(patience),
            crowded: micros(crowded),
        });
        Self(Guard::new(table), Mutex::default())
    }

    /// Add somewhere to connect to, and give its number.
    #[pyo3(signature = (*, encrypted))]
    fn add_origin(&self, py: Python<'_>, encrypted: bool) -> PyResult<u32> {
        self.0.with(py, |table| table.add_origin(encrypted))
    }

    /// Send a request.
    #[expect(clippy::too_many_arguments, reason = "a table of what is sent")]
    #[pyo3(signature = (token, origin, head, size, limit, now, /))]
    fn send(
        &self,
        py: Python<'_>,
        token: Unsigned<u64>,
        origin: Unsigned<u32>,
        head: Data<'_>,
        size: Unsigned<u64>,
        limit: f64,
        now: f64,
    ) -> PyResult<()> {
        let size = usize::try_from(size.0).unwrap_or(usize::MAX);
        self.0.with(py, |table| table.send(token.0, origin.0, (&*head).into(), size, micros(limit), micros(now)))
    }

    /// Forget a request.
    #[pyo3(signature = (token, now, /))]
    fn cancel(&self, py: Python<'_>, token: Unsigned<u64>, now: f64) -> PyResult<bool> {
        self.tell(py, |table| table.cancel(token.0, micros(now)))
    }

    /// Fail every request, and close every connection.
    #[pyo3(signature = (now, /))]
    fn close(&self, py: Python<'_>, now: f64) -> PyResult<bool> {
        self.tell(py, |table| table.close(micros(now)))
    }

    /// A connection was made.
    #[pyo3(signature = (slot, now, /))]
    fn opened(&self, py: Python<'_>, slot: Unsigned<u32>, now: f64) -> PyResult<bool> {
        self.tell(py, |table| table.opened(slot.0, micros(now)))
    }

    /// A connection could not be made; gives the request that fails with it.
    #[pyo3(signature = (slot, now, /))]
    fn unopened(&self, py: Python<'_>, slot: Unsigned<u32>, now: f64) -> PyResult<Option<u64>> {
        self.0.with(py, |table| Ok(table.unopened(slot.0, micros(now))))
    }

    /// A connection brought bytes.
    #[pyo3(signature = (slot, data, now, /))]
    fn feed(&self, py: Python<'_>, slot: Unsigned<u32>, data: &Bound<'_, PyAny>, now: f64) -> PyResult<bool> {
        let mut memory = self.1.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner);
        let data = Data::copied(data, &mut memory)?;
        let feed = |table: &mut http::ExchangeTable| {
            table.feed(slot.0, data, micros(now));
            Ok(table.is_pending())
        };
        if data.len() > LARGE { self.0.with_long(py, |_| true, feed) } else { self.0.with(py, feed) }
    }

    /// The other side sends nothing more.
    #[pyo3(signature = (slot, now, /))]
    fn eof(&self, py: Python<'_>, slot: Unsigned<u32>, now: f64) -> PyResult<bool> {
        self.tell(py, |table| table.eof(slot.0, micros(now)))
    }

    /// A connection is closed.
    #[pyo3(signature = (slot, reason, now, /))]
    fn lost(&self, py: Python<'_>, slot: Unsigned<u32>, reason: Option<Text<'_>>, now: f64) -> PyResult<bool> {
        self.tell(py, |table| table.lost(slot.0, reason.as_deref(), micros(now)))
    }

    /// Bytes of a request are still to be sent while its answer is whole.
    #[pyo3(signature = (slot, /))]
    fn unsent(&self, py: Python<'_>, slot: Unsigned<u32>) -> PyResult<bool> {
        self.tell(py, |table| table.unsent(slot.0))
    }

    /// A connection has brought something before its request was written.
    #[pyo3(signature = (slot, now, /))]
    fn unasked(&self, py: Python<'_>, slot: Unsigned<u32>, now: f64) -> PyResult<bool> {
        self.tell(py, |table| table.unasked(slot.0, micros(now)))
    }

    /// How many bytes of its request a connection has not acknowledged.
    #[pyo3(signature = (slot, count, now, /))]
    fn unacknowledged(&self, py: Python<'_>, slot: Unsigned<u32>, count: Unsigned<u64>, now: f64) -> PyResult<bool> {
        let count = usize::try_from(count.0).unwrap_or(usize::MAX);
        self.tell(py, |table| table.unacknowledged(slot.0, count, micros(now)))
    }

    /// Take out the answers that have come, and the requests that get none.
    #[pyo3(signature = (now, /))]
    fn land<'py>(&self, py: Python<'py>, now: f64) -> PyResult<(Vec<Answered<'py>>, Vec<Unanswered>)> {
        let (landed, failed) = self.0.with(py, |table| {
            table.settle(micros(now));
            Ok((table.take_landed(), table.take_failed()))
        })?;
        Ok((answered(py, landed)?, failed.into_iter().map(unanswered).collect()))
    }

    /// Take out what is to be done with sockets, and when to come back.
    #[pyo3(signature = (now, /))]
    fn act<'py>(&self, py: Python<'py>, now: f64) -> PyResult<Deeds<'py>> {
        self.take_actions(py, micros(now), |token, table, out| {
            table.head_onto(token, out);
            Ok(true)
        })
    }

    /// Connections to an origin that are there, being made or being closed.
    #[pyo3(signature = (origin, /))]
    fn held(&self, py: Python<'_>, origin: Unsigned<u32>) -> PyResult<usize> {
        self.0.with(py, |table| Ok(table.held(origin.0)))
    }
}

/// Method, target, body, whether the connection may bring another request, and the values of the wanted headers.
type Asked<'py> = (String, String, Bound<'py, PyBytes>, bool, Bound<'py, PyTuple>);

/// The requests that one connection of a server brings.
#[pyclass(frozen, module = "trunkline._core")]
pub struct RequestReader(Guard<http::RequestReader>, Vec<String>);

#[pymethods]
impl RequestReader {
    #[new]
    #[pyo3(signature = (most, wanted))]
    fn new(most: Unsigned<u64>, #[pyo3(from_py_with = names)] wanted: Vec<String>) -> Self {
        let reader = http::RequestReader::new(usize::try_from(most.0).unwrap_or(usize::MAX));
        Self(Guard::new(reader), wanted)
    }

    /// The connection brought bytes.
    #[pyo3(signature = (data, /))]
    fn feed(&self, py: Python<'_>, data: Data<'_>) -> PyResult<u8> {
        let feed = |reader: &mut http::RequestReader| Ok(reader.feed(&data));
        let state = if data.len() > LARGE { self.0.with_long(py, |_| true, feed) } else { self.0.with(py, feed) }?;
        state.map(|state| state as u8).map_err(|refused| PyValueError::new_err((refused.status, refused.text)))
    }

    /// Take out the request that is whole.
    fn take<'py>(&self, py: Python<'py>) -> PyResult<Asked<'py>> {
        let Some(request) = self.0.with(py, |reader| Ok(reader.take()))? else {
            return Err(PyValueError::new_err("no request is whole: take() follows a feed() that returned 2"));
        };
        let values = self.1.iter().map(|name| request.headers.get(name.as_bytes()).map(latin));
        let values = PyTuple::new(py, values.collect::<Vec<_>>())?;
        Ok((request.method, request.target, PyBytes::new(py, &request.body), request.stays, values))
    }

    /// Whether the client waits for 100 (Continue).
    #[getter]
    fn expects(&self, py: Python<'_>) -> PyResult<bool> {
        self.0.with(py, |reader| Ok(reader.expects()))
    }

    /// The target of a head that is whole.
    #[getter]
    fn target(&self, py: Python<'_>) -> PyResult<String> {
        self.0.with(py, |reader| Ok(reader.target().to_owned()))
    }

    /// The length of the body, unless it comes in chunks.
    #[getter]
    fn size(&self, py: Python<'_>) -> PyResult<Option<usize>> {
        self.0.with(py, |reader| Ok(reader.size()))
    }

    /// Bytes of no whole request.
    #[getter]
    fn held(&self, py: Python<'_>) -> PyResult<usize> {
        self.0.with(py, |reader| Ok(reader.held()))
    }
}

fn names(names: &Bound<'_, PyAny>) -> PyResult<Vec<String>> {
    names.extract().map_err(|error| refine(names.py(), error, "a name of a header holds lone surrogates"))
}

/// The text of a header's value.
fn latin(value: &[u8]) -> String {
    value.iter().copied().map(char::from).collect()
}
