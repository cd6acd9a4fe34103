//! `Ledger` and `Refusal`, and amounts as dictionaries.

use std::num::NonZeroU32;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use trunkline_core as core;
use trunkline_core::{Amount, Bounds, Currency, Keyword, Reservation};

use crate::error::{argument, raise, refine};
use crate::guard::{Guard, attached};
use crate::input::{Text, Unsigned};

/// Why a budget does not allow something.
#[pyclass(frozen, get_all, module = "trunkline._core")]
#[derive(Clone)]
pub struct Refusal {
    /// The scarcest currency.
    currency: &'static str,
    /// How much was asked for; None if no upper bound is known.
    wanted: Option<u64>,
    /// How much is left.
    left: u64,
    /// The limit.
    limit: u64,
    text: String,
}

impl From<core::Refusal> for Refusal {
    fn from(refusal: core::Refusal) -> Self {
        let core::Refusal { currency, wanted, left, limit } = refusal;
        Self { currency: currency.as_str(), wanted, left, limit, text: refusal.to_string() }
    }
}

#[pymethods]
impl Refusal {
    fn __str__(&self) -> &str {
        &self.text
    }

    fn __repr__(&self) -> String {
        format!("<Refusal: {}>", self.text)
    }
}

/// What was asked for, or why not.
#[derive(IntoPyObject)]
pub enum Outcome<T> {
    /// It was granted.
    Granted(T),
    /// It was refused.
    Refused(Refusal),
}

impl<T> From<Result<T, core::Refusal>> for Outcome<T> {
    fn from(result: Result<T, core::Refusal>) -> Self {
        result.map_or_else(|refusal| Self::Refused(refusal.into()), Self::Granted)
    }
}

/// The most of each currency, None where that is not known; what is left out is 0.
pub struct Most(pub Bounds);

impl<'py> FromPyObject<'_, 'py> for Most {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        read(&value, Some(0)).map(|most| Self(Bounds(most)))
    }
}

/// The limit of each currency; what is left out has none.
struct Limits(Bounds);

impl<'py> FromPyObject<'_, 'py> for Limits {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        read(&value, None).map(|limits| Self(Bounds(limits)))
    }
}

/// So much of each currency; what is left out is 0.
struct Exact(Amount);

impl<'py> FromPyObject<'_, 'py> for Exact {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let figures = read(&value, Some(0))?;
        if let Some((currency, _)) = Currency::ALL.iter().zip(figures).find(|(_, figure)| figure.is_none()) {
            return Err(argument(value.py(), &format!("{} is None where a number is needed", currency.as_str())));
        }
        Ok(Self(Amount(figures.map(Option::unwrap_or_default))))
    }
}

/// The figures of a dictionary, `rest` for the currencies that it leaves out.
fn read(value: &Bound<'_, PyAny>, rest: Option<u64>) -> PyResult<[Option<u64>; 8]> {
    let (py, mut all) = (value.py(), Bounds([rest; 8]));
    for (name, figure) in value.cast::<PyDict>()? {
        let name: Text<'_> = name.extract()?;
        let currency = Currency::from_word(&name).map_err(|error| raise(py, &error))?;
        let text = format!("{} is {figure}; it must be 0 to 2^64 - 1", currency.as_str());
        all = all.with(currency, figure.extract().map_err(|error| refine(py, error, &text))?);
    }
    Ok(all.0)
}

fn dictionary(py: Python<'_>, figures: [Option<u64>; 8]) -> PyResult<Bound<'_, PyDict>> {
    let dict = PyDict::new(py);
    for (currency, figure) in Currency::ALL.into_iter().zip(figures) {
        if let Some(figure) = figure {
            dict.set_item(PyString::intern(py, currency.as_str()), figure)?;
        }
    }
    Ok(dict)
}

/// A budget and everything that draws on it.
#[pyclass(frozen, module = "trunkline._core")]
pub struct Ledger(Guard<core::Ledger>);

impl Ledger {
    /// Work on the ledger inside, with its lock held.
    pub fn with<R>(&self, py: Python<'_>, work: impl FnOnce(&mut core::Ledger) -> core::Result<R>) -> PyResult<R> {
        self.0.with(py, work)
    }

    fn amount<'py>(&self, py: Python<'py>, which: impl Fn(&core::Ledger) -> &Amount) -> PyResult<Bound<'py, PyDict>> {
        dictionary(py, self.0.with(py, |ledger| Ok(which(ledger).0.map(Some)))?)
    }
}

#[pymethods]
impl Ledger {
    #[new]
    #[pyo3(signature = (limits=None, spent=None, estimated=None))]
    fn new(py: Python<'_>, limits: Option<Limits>, spent: Option<Exact>, estimated: Option<Exact>) -> PyResult<Self> {
        let limits = limits.map_or(Bounds::NONE, |limits| limits.0);
        let [spent, estimated] = [spent, estimated].map(|amount| amount.map_or(Amount::ZERO, |amount| amount.0));
        attached(py, || core::Ledger::rebuild(limits, spent, estimated)).map(|ledger| Self(Guard::new(ledger)))
    }

    /// Set aside the most that something can cost.
    #[pyo3(signature = (most, /))]
    fn reserve(&self, py: Python<'_>, most: Most) -> PyResult<Outcome<u64>> {
        self.0.with(py, |ledger| Ok(ledger.reserve(&most.0).map(|reservation| reservation.0).into()))
    }

    /// Count what something did cost, and give the rest back.
    #[pyo3(signature = (reservation, actual, /))]
    fn settle(&self, py: Python<'_>, reservation: Unsigned<u64>, actual: Exact) -> PyResult<()> {
        self.0.with(py, |ledger| ledger.settle(Reservation(reservation.0), &actual.0))
    }

    /// Give all of a reservation back.
    #[pyo3(signature = (reservation, /))]
    fn release(&self, py: Python<'_>, reservation: Unsigned<u64>) -> PyResult<()> {
        self.0.with(py, |ledger| ledger.release(Reservation(reservation.0)))
    }

    /// Lease out a part of what is left.
    #[pyo3(signature = (parts, least, /))]
    fn lease(&self, py: Python<'_>, parts: Unsigned<u32>, least: Most) -> PyResult<Outcome<(u64, Self)>> {
        let parts = NonZeroU32::new(parts.0).ok_or_else(|| argument(py, "parts is 0; it must be 1 or more"))?;
        let outcome = self.0.with(py, |ledger| Ok(ledger.lease(parts, &least.0)))?;
        Ok(outcome.map(|lease| (lease.id, Self(Guard::new(lease.ledger)))).into())
    }

    /// Take a lease back.
    #[pyo3(signature = (lease, spent, /))]
    fn take_back(&self, py: Python<'_>, lease: Unsigned<u64>, spent: Exact) -> PyResult<()> {
        self.0.with(py, |ledger| ledger.take_back(lease.0, &spent.0))
    }

    /// Take the lease of a dead worker back.
    #[pyo3(signature = (lease, durable, unacknowledged, /))]
    fn settle_lost(&self, py: Python<'_>, lease: Unsigned<u64>, durable: Exact, unacknowledged: Exact) -> PyResult<()> {
        self.0.with(py, |ledger| ledger.settle_lost(lease.0, &durable.0, &unacknowledged.0))
    }

    /// The limits of the currencies that have one.
    #[getter]
    fn limits<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        dictionary(py, self.0.with(py, |ledger| Ok(ledger.limits().0))?)
    }

    /// What is left of the currencies that have a limit.
    #[getter]
    fn left<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let left = |ledger: &core::Ledger, currency| ledger.limits().get(currency).map(|_| ledger.left(currency));
        dictionary(py, self.0.with(py, |ledger| Ok(Currency::ALL.map(|currency| left(ledger, currency))))?)
    }

    /// What was spent, estimates included.
    #[getter]
    fn spent<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.amount(py, core::Ledger::spent)
    }

    /// The estimated part of `spent`.
    #[getter]
    fn estimated<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.amount(py, core::Ledger::estimated)
    }

    /// What things cost beyond what was promised.
    #[getter]
    fn overshoot<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.amount(py, core::Ledger::overshoot)
    }

    /// What open reservations hold.
    #[getter]
    fn reserved<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.amount(py, core::Ledger::reserved)
    }

    /// What open leases hold.
    #[getter]
    fn leased<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.amount(py, core::Ledger::leased)
    }

    /// How many reservations and leases are open.
    #[getter]
    fn open(&self, py: Python<'_>) -> PyResult<usize> {
        self.0.with(py, |ledger| Ok(ledger.open()))
    }
}
