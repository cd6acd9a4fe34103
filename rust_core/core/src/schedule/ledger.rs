//! The ledger: what a budget allows, what is spent of it, and what is promised.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use super::amount::{Amount, Bounds, Currency};
use crate::error::{Error, Result};

/// A budget and everything that draws on it.
///
/// Whatever may cost something reserves the most that it can cost before it starts, and is settled at what it did cost. A
/// part of what is left can be leased out as a ledger of its own, for spending without further requests. Always, in every
/// currency with a limit:
///
/// `spent + reserved + leased <= limit + overshoot`
///
/// where overshoot is what settled things cost beyond what was reserved or leased for them. A reservation or lease is only
/// granted out of what is left, so overshoot is all that a budget can be exceeded by, and it can only come from what was in
/// flight (or from a run that is resumed with a smaller limit than what it has spent).
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    limits: Bounds,
    spent: Amount,
    estimated: Amount,
    overshoot: Amount,
    reserved: Amount,
    leased: Amount,
    reservations: BTreeMap<u64, Amount>,
    leases: BTreeMap<u64, Amount>,
    // Numbers of reservations and leases given so far.
    given: u64,
}

/// Why a budget does not allow something. Not a mistake of the caller's but an outcome to record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} {} wanted, {left} left of {limit}", wanted.map_or_else(|| "unbounded".to_owned(), |wanted| wanted.to_string()),
    currency.as_str())]
pub struct Refusal {
    /// The scarcest currency; of equally scarce ones the first.
    pub currency: Currency,
    /// How much was asked for; `None` if no upper bound is known.
    pub wanted: Option<u64>,
    /// How much is left.
    pub left: u64,
    /// The limit; 2^64 - 1 without a limit, when the counter is full.
    pub limit: u64,
}

/// An amount set aside until it is settled or released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reservation(pub u64);

/// A part of a budget to be spent elsewhere.
#[derive(Clone, Debug)]
pub struct Lease {
    /// What it is taken back by.
    pub id: u64,
    /// What may be spent: the leased amounts are its limits. A currency without a limit has none here either.
    pub ledger: Ledger,
}

impl Ledger {
    /// An untouched budget.
    #[must_use]
    pub fn new(limits: Bounds) -> Self {
        Self { limits, ..Self::default() }
    }

    /// A budget of which something is spent already, as the rows of an earlier run say; a part of that is only estimated.
    ///
    /// # Errors
    /// [`Error::Value`] if more is estimated than spent.
    pub fn rebuild(limits: Bounds, spent: Amount, estimated: Amount) -> Result<Self> {
        for currency in Currency::ALL {
            let (all, part) = (spent.get(currency), estimated.get(currency));
            if part > all {
                let value = format!("{part} {} are estimated of {all} spent", currency.as_str());
                return Err(Error::conflict(value, "a part of what is spent"));
            }
        }
        let mut ledger = Self { limits, estimated, ..Self::default() };
        ledger.spend(&spent, &limits.known());
        Ok(ledger)
    }

    /// What may be spent at all.
    #[must_use]
    pub const fn limits(&self) -> &Bounds {
        &self.limits
    }

    /// What was spent, estimates included.
    #[must_use]
    pub const fn spent(&self) -> &Amount {
        &self.spent
    }

    /// The estimated part of [`Ledger::spent`]: reservations of calls whose outcome was lost.
    #[must_use]
    pub const fn estimated(&self) -> &Amount {
        &self.estimated
    }

    /// What things cost beyond what was reserved or leased for them, in the currencies that have a limit.
    #[must_use]
    pub const fn overshoot(&self) -> &Amount {
        &self.overshoot
    }

    /// What open reservations hold.
    #[must_use]
    pub const fn reserved(&self) -> &Amount {
        &self.reserved
    }

    /// What open leases hold, in the currencies that have a limit.
    #[must_use]
    pub const fn leased(&self) -> &Amount {
        &self.leased
    }

    /// How many reservations and leases are open. A leased ledger is taken back when it has none.
    #[must_use]
    pub fn open(&self) -> usize {
        self.reservations.len() + self.leases.len()
    }

    /// What can still be reserved or leased. Without a limit that is what the counters can hold.
    #[must_use]
    pub fn left(&self, currency: Currency) -> u64 {
        let held = [&self.spent, &self.reserved, &self.leased];
        held.iter().fold(self.limit(currency), |left, amount| left.saturating_sub(amount.get(currency)))
    }

    fn limit(&self, currency: Currency) -> u64 {
        self.limits.get(currency).unwrap_or(u64::MAX)
    }

    /// Set aside the most that something can cost.
    ///
    /// # Errors
    /// The first currency with too little left. A cost without a known bound is refused where there is a limit.
    pub fn reserve(&mut self, most: &Bounds) -> std::result::Result<Reservation, Refusal> {
        self.allow(most, 1).map_or(Ok(()), |(_, refusal)| Err(refusal))?;
        Ok(self.hold(most.known()))
    }

    /// Set aside what up to `n` equal things can cost: for as many as the budget allows, and why not for all.
    pub fn reserve_some(&mut self, each: &Bounds, n: u32) -> (u32, Option<Reservation>, Option<Refusal>) {
        let (n, refusal) = self.allow(each, n).map_or((n, None), |(fewer, refusal)| (fewer, Some(refusal)));
        let reservation = (n > 0).then(|| self.hold(each.known().times(u64::from(n))));
        (n, reservation, refusal)
    }

    /// For how many of `n` equal things there is enough, and what is short, unless there is enough for all.
    fn allow(&self, each: &Bounds, n: u32) -> Option<(u32, Refusal)> {
        let mut short = None;
        let mut allowed = n;
        for currency in Currency::ALL {
            let (each, limit, left) = (each.get(currency), self.limit(currency), self.left(currency));
            let enough = match each {
                None if self.limits.get(currency).is_some() => 0,
                None | Some(0) => continue,
                Some(each) => u32::try_from(left / each).unwrap_or(u32::MAX),
            };
            if enough < allowed {
                let wanted = each.map(|each| each.saturating_mul(u64::from(n)));
                (allowed, short) = (enough, Some(Refusal { currency, wanted, left, limit }));
            }
        }
        short.map(|refusal| (allowed, refusal))
    }

    fn hold(&mut self, amount: Amount) -> Reservation {
        let id = self.number();
        self.reserved = self.reserved.plus(&amount);
        self.reservations.insert(id, amount);
        Reservation(id)
    }

    // 2^64 of them are never given.
    fn number(&mut self) -> u64 {
        self.given = self.given.saturating_add(1);
        self.given
    }

    /// Something is over: count what it cost, which may be more than was reserved, and give the rest back.
    ///
    /// # Errors
    /// [`Error::Value`] if the reservation is not open.
    pub fn settle(&mut self, reservation: Reservation, actual: &Amount) -> Result<()> {
        let reserved = self.close(reservation)?;
        self.spend(actual, &reserved);
        Ok(())
    }

    /// Something did not happen: give all of it back.
    ///
    /// # Errors
    /// As [`Ledger::settle`].
    pub fn release(&mut self, reservation: Reservation) -> Result<()> {
        self.close(reservation).map(|_| ())
    }

    fn close(&mut self, reservation: Reservation) -> Result<Amount> {
        let missing = || missing("reservation", reservation.0);
        let amount = self.reservations.remove(&reservation.0).ok_or_else(missing)?;
        self.reserved = self.reserved.minus(&amount);
        Ok(amount)
    }

    fn spend(&mut self, actual: &Amount, promised: &Amount) {
        self.spent = self.spent.plus(actual);
        self.overshoot = self.overshoot.plus(&self.limited(&actual.minus(promised)));
    }

    /// The same amount without the currencies that have no limit.
    fn limited(&self, amount: &Amount) -> Amount {
        let limited = Currency::ALL.into_iter().filter(|currency| self.limits.get(*currency).is_some());
        limited.fold(Amount::ZERO, |sum, currency| sum.with(currency, amount.get(currency)))
    }

    /// Lease out one of `parts` equal parts of what is left, rounded up, but no less than `least`.
    ///
    /// So leases shrink as the limit comes near, and none is too small for what is to be done with it (guided
    /// self-scheduling: Polychronopoulos and Kuck, 1987). Twice as many parts as there are workers let every worker have two
    /// leases before anything is left unevenly.
    ///
    /// # Errors
    /// What is short, if less than `least` is left of something.
    pub fn lease(&mut self, parts: NonZeroU32, least: &Bounds) -> std::result::Result<Lease, Refusal> {
        self.allow(least, 1).map_or(Ok(()), |(_, refusal)| Err(refusal))?;
        let mut granted = Bounds::NONE;
        for currency in Currency::ALL.into_iter().filter(|currency| self.limits.get(*currency).is_some()) {
            let part = self.left(currency).div_ceil(u64::from(parts.get()));
            granted = granted.with(currency, Some(part.max(least.known().get(currency))));
        }
        let id = self.number();
        self.leased = self.leased.plus(&granted.known());
        self.leases.insert(id, granted.known());
        Ok(Lease { id, ledger: Self::new(granted) })
    }

    /// Take a lease back: count what was spent of it, and give the rest back. Nothing may be in flight on it any more: a
    /// holder of open reservations is settled as lost, with them.
    ///
    /// # Errors
    /// [`Error::Value`] if the lease is not open: it never existed, or was taken back before.
    pub fn take_back(&mut self, lease: u64, spent: &Amount) -> Result<()> {
        let granted = self.leases.remove(&lease).ok_or_else(|| missing("lease", lease))?;
        self.leased = self.leased.minus(&granted);
        self.spend(spent, &granted);
        Ok(())
    }

    /// Take the lease of a dead worker back: it spent what is durable, and what was reserved and not acknowledged counts as
    /// spent too, as an estimate. What is paid again is reserved again.
    ///
    /// # Errors
    /// As [`Ledger::take_back`].
    pub fn settle_lost(&mut self, lease: u64, durable: &Amount, unacknowledged: &Amount) -> Result<()> {
        self.take_back(lease, &durable.plus(unacknowledged))?;
        self.estimated = self.estimated.plus(unacknowledged);
        Ok(())
    }
}

fn missing(what: &str, id: u64) -> Error {
    let value = format!("{what} {id} is not open");
    Error::reference(value, "one that was given and not yet taken back")
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
mod tests {
    use std::num::NonZeroU32;

    use super::{Amount, Bounds, Currency, Ledger, Refusal};
    use Currency::{Calls, Generated};

    fn generated(amount: u64) -> Amount {
        Amount::ZERO.with(Generated, amount)
    }

    fn budget(limit: u64) -> Ledger {
        Ledger::new(Bounds::NONE.with(Generated, Some(limit)))
    }

    #[test]
    fn a_reservation_holds_until_it_is_settled() {
        let mut ledger = budget(100);
        let first = ledger.reserve(&generated(60).into()).unwrap();
        let refusal = ledger.reserve(&generated(41).into()).unwrap_err();
        assert_eq!(refusal, Refusal { currency: Generated, wanted: Some(41), left: 40, limit: 100 });
        assert_eq!(refusal.to_string(), "41 generated wanted, 40 left of 100");
        ledger.settle(first, &generated(25)).unwrap();
        let second = ledger.reserve(&generated(75).into()).unwrap();
        ledger.settle(second, &generated(80)).unwrap();
        assert_eq!((ledger.left(Generated), *ledger.spent(), *ledger.overshoot()), (0, generated(105), generated(5)));
        assert_eq!(ledger.left(Calls), u64::MAX);
        let text = ledger.settle(second, &Amount::ZERO).unwrap_err().to_string();
        assert!(text.starts_with("reservation 2 is not open"), "{text}");
    }

    #[test]
    fn what_has_no_bound_is_refused_where_there_is_a_limit() {
        let unbounded = Bounds::from(Amount::ZERO).with(Generated, None);
        let refusal = budget(5).reserve(&unbounded).unwrap_err();
        assert_eq!((refusal.wanted, refusal.to_string().as_str()), (None, "unbounded generated wanted, 5 left of 5"));
        let mut free = Ledger::new(Bounds::NONE.with(Calls, Some(1)));
        let call = free.reserve(&unbounded.with(Calls, Some(1))).unwrap();
        free.settle(call, &generated(7).with(Calls, 1)).unwrap();
        assert_eq!((*free.spent(), *free.overshoot()), (generated(7).with(Calls, 1), Amount::ZERO));
    }

    #[test]
    fn as_many_are_allowed_as_fit() {
        let mut ledger = budget(100);
        let (n, reservation, refusal) = ledger.reserve_some(&generated(30).into(), 5);
        assert_eq!((n, refusal.unwrap().wanted, *ledger.reserved()), (3, Some(150), generated(90)));
        let (n, none, _) = ledger.reserve_some(&generated(30).into(), 5);
        assert_eq!((n, none), (0, None));
        ledger.release(reservation.unwrap()).unwrap();
        assert_eq!((ledger.left(Generated), ledger.open()), (100, 0));
    }

    #[test]
    fn leases_shrink_near_the_limit_and_end_at_what_is_of_use() {
        let (mut ledger, parts) = (budget(1000), NonZeroU32::new(4).unwrap());
        let sizes: Vec<u64> = std::iter::from_fn(|| ledger.lease(parts, &generated(100).into()).ok())
            .map(|lease| lease.ledger.left(Generated))
            .collect();
        assert_eq!(sizes, [250, 188, 141, 106, 100, 100, 100]);
        assert_eq!((*ledger.leased(), ledger.left(Generated)), (generated(985), 15));
    }

    #[test]
    fn a_lease_is_taken_back_once() {
        let mut ledger = budget(100);
        let parts = NonZeroU32::new(2).unwrap();
        let lease = ledger.lease(parts, &Bounds::NONE.with(Generated, Some(1))).unwrap();
        ledger.take_back(lease.id, &generated(20).with(Calls, 2)).unwrap();
        assert_eq!((ledger.left(Generated), ledger.spent().get(Calls)), (80, 2));
        assert!(ledger.take_back(lease.id, &Amount::ZERO).unwrap_err().to_string().starts_with("lease 1 is not open"));
        let lost = ledger.lease(parts, &generated(1).into()).unwrap();
        ledger.settle_lost(lost.id, &generated(10), &generated(25)).unwrap();
        assert_eq!((*ledger.estimated(), ledger.left(Generated)), (generated(25), 45));
        assert!(ledger.settle_lost(lost.id, &Amount::ZERO, &Amount::ZERO).is_err());
    }

    #[test]
    fn a_resumed_run_has_spent_what_its_rows_say() {
        let limits = Bounds::NONE.with(Generated, Some(100));
        let ledger = Ledger::rebuild(limits, generated(130), generated(30)).unwrap();
        assert_eq!((ledger.left(Generated), *ledger.overshoot()), (0, generated(30)));
        let text = Ledger::rebuild(limits, generated(1), generated(2)).unwrap_err().to_string();
        assert_eq!(text, "2 generated are estimated of 1 spent; it must be a part of what is spent");
    }
}
