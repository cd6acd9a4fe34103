//! `Ledger` and `Refusal`, and amounts as dictionaries.

use std::num::NonZeroU32;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use trunkline_core as core;
use trunkline_core::{Amount, Bounds, Currency, Error, Reservation};

use crate::error::{argument, raise, refine};
use crate::guard::{Guard, attached};
use crate::input::{Text, number};

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

/// A dictionary from currencies to the most of each, None where that is not known.
pub fn bounds(value: &Bound<'_, PyAny>) -> PyResult<Bounds> {
    read(value, Amount::ZERO.into(), |bounds, currency, most| Ok(bounds.with(currency, most)))
}

fn limits(value: &Bound<'_, PyAny>) -> PyResult<Bounds> {
    read(value, Bounds::NONE, |bounds, currency, limit| Ok(bounds.with(currency, limit)))
}

fn amount(value: &Bound<'_, PyAny>) -> PyResult<Amount> {
    let py = value.py();
    read(value, Amount::ZERO, |amount, currency, exact| {
        let exact =
            exact.ok_or_else(|| argument(py, &format!("{} is None where a number is needed", currency.as_str())))?;
        Ok(amount.with(currency, exact))
    })
}

fn read<T>(
    value: &Bound<'_, PyAny>,
    mut all: T,
    with: impl Fn(T, Currency, Option<u64>) -> PyResult<T>,
) -> PyResult<T> {
    let py = value.py();
    for (name, figure) in value.cast::<PyDict>()? {
        let name: Text<'_> = name.extract()?;
        let currency = Currency::from_name(&name).ok_or_else(|| {
            let value = format!("{:?} is no currency", &*name);
            raise(py, &Error::Value { value, want: "one of CURRENCIES" })
        })?;
        let text = format!("{} is {figure}; it must be 0 to 2^64 - 1", currency.as_str());
        all = with(all, currency, figure.extract().map_err(|error| refine(py, error, &text))?)?;
    }
    Ok(all)
}

fn dictionary(py: Python<'_>, each: impl Fn(Currency) -> Option<u64>) -> PyResult<Bound<'_, PyDict>> {
    let dict = PyDict::new(py);
    for currency in Currency::ALL {
        if let Some(figure) = each(currency) {
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
        let amount = self.0.with(py, |ledger| Ok(*which(ledger)))?;
        dictionary(py, |currency| Some(amount.get(currency)))
    }
}

#[pymethods]
impl Ledger {
    #[new]
    #[pyo3(signature = (limits=None, spent=None, estimated=None))]
    fn new(
        py: Python<'_>,
        limits: Option<&Bound<'_, PyAny>>,
        spent: Option<&Bound<'_, PyAny>>,
        estimated: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let limits = limits.map_or(Ok(Bounds::NONE), self::limits)?;
        let [spent, estimated] = [spent, estimated].map(|value| value.map_or(Ok(Amount::ZERO), amount));
        let (spent, estimated) = (spent?, estimated?);
        attached(py, || core::Ledger::rebuild(limits, spent, estimated)).map(|ledger| Self(Guard::new(ledger)))
    }

    /// Set aside the most that something can cost.
    #[pyo3(signature = (most, /))]
    fn reserve(&self, py: Python<'_>, #[pyo3(from_py_with = bounds)] most: Bounds) -> PyResult<Outcome<u64>> {
        self.0.with(py, |ledger| Ok(ledger.reserve(&most).map(|reservation| reservation.0).into()))
    }

    /// Count what something did cost, and give the rest back.
    #[pyo3(signature = (reservation, actual, /))]
    fn settle(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = number)] reservation: u64,
        #[pyo3(from_py_with = amount)] actual: Amount,
    ) -> PyResult<()> {
        self.0.with(py, |ledger| ledger.settle(Reservation(reservation), &actual))
    }

    /// Give all of a reservation back.
    #[pyo3(signature = (reservation, /))]
    fn release(&self, py: Python<'_>, #[pyo3(from_py_with = number)] reservation: u64) -> PyResult<()> {
        self.0.with(py, |ledger| ledger.release(Reservation(reservation)))
    }

    /// Lease out a part of what is left.
    #[pyo3(signature = (parts, least, /))]
    fn lease(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = number)] parts: u32,
        #[pyo3(from_py_with = bounds)] least: Bounds,
    ) -> PyResult<Outcome<(u64, Self)>> {
        let parts = NonZeroU32::new(parts).ok_or_else(|| argument(py, "parts is 0; it must be 1 or more"))?;
        let outcome = self.0.with(py, |ledger| Ok(ledger.lease(parts, &least)))?;
        Ok(outcome.map(|lease| (lease.id, Self(Guard::new(lease.ledger)))).into())
    }

    /// Take a lease back.
    #[pyo3(signature = (lease, spent, /))]
    fn take_back(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = number)] lease: u64,
        #[pyo3(from_py_with = amount)] spent: Amount,
    ) -> PyResult<()> {
        self.0.with(py, |ledger| ledger.take_back(lease, &spent))
    }

    /// Take the lease of a dead worker back.
    #[pyo3(signature = (lease, durable, unacknowledged, /))]
    fn settle_lost(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = number)] lease: u64,
        #[pyo3(from_py_with = amount)] durable: Amount,
        #[pyo3(from_py_with = amount)] unacknowledged: Amount,
    ) -> PyResult<()> {
        self.0.with(py, |ledger| ledger.settle_lost(lease, &durable, &unacknowledged))
    }

    /// The limits of the currencies that have one.
    #[getter]
    fn limits<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let limits = self.0.with(py, |ledger| Ok(*ledger.limits()))?;
        dictionary(py, |currency| limits.get(currency))
    }

    /// What is left of the currencies that have a limit.
    #[getter]
    fn left<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let left = self.0.with(py, |ledger| {
            let left = |currency| ledger.limits().get(currency).map(|_| ledger.left(currency));
            Ok(Currency::ALL.map(left))
        })?;
        dictionary(py, |currency| left.get(currency as usize).copied().flatten())
    }

    /// What was spent, estimates included.
    #[getter]
    fn spent<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.amount(py, core::Ledger::spent)
    }

    /// The part of `spent` that nobody measured.
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
