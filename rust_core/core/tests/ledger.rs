//! The ledger against a model that keeps every entry and sums them up anew each time.
#![allow(missing_docs)]
#![allow(clippy::unwrap_used)]

use std::num::NonZeroU32;

use proptest::prelude::*;
use trunkline_core::{Amount, Bounds, Currency, Keyword, Ledger, Reservation};

const TWO: [Currency; 2] = [Currency::Calls, Currency::Generated];

fn amount([calls, generated]: [u64; 2]) -> Amount {
    Amount::ZERO.with(TWO[0], calls).with(TWO[1], generated)
}

fn bounds(each: [Option<u64>; 2]) -> Bounds {
    Bounds::from(Amount::ZERO).with(TWO[0], each[0]).with(TWO[1], each[1])
}

fn limits(each: [Option<u64>; 2]) -> Bounds {
    Bounds::NONE.with(TWO[0], each[0]).with(TWO[1], each[1])
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Reserve([Option<u64>; 2]),
    Several([u64; 2], u32),
    Settle(usize, [u64; 2]),
    Release(usize),
    Lease(u32, [u64; 2]),
    TakeBack(usize, [u64; 2]),
    Lost(usize, [u64; 2], [u64; 2]),
}

fn step() -> impl Strategy<Value = Step> {
    let pair = || [0u64..40, 0..40];
    let unsure = prop::option::weighted(0.9, 0u64..40);
    prop_oneof![
        [unsure.clone(), unsure].prop_map(Step::Reserve),
        (pair(), 0u32..6).prop_map(|(each, n)| Step::Several(each, n)),
        (0usize..20, pair()).prop_map(|(which, actual)| Step::Settle(which, actual)),
        (0usize..20).prop_map(Step::Release),
        (1u32..6, pair()).prop_map(|(parts, least)| Step::Lease(parts, least)),
        (0usize..20, pair()).prop_map(|(which, spent)| Step::TakeBack(which, spent)),
        (0usize..20, pair(), pair()).prop_map(|(which, durable, lost)| Step::Lost(which, durable, lost)),
    ]
}

/// Every entry there ever was.
#[derive(Default)]
struct Model {
    limits: [Option<u64>; 2],
    /// Id, amounts, and whether it is a lease; none of it once it is over.
    held: Vec<Option<(u64, [u64; 2], bool)>>,
    spent: Vec<[u64; 2]>,
    overshoot: Vec<[u64; 2]>,
    estimated: Vec<[u64; 2]>,
}

fn sum(amounts: &[[u64; 2]], currency: usize) -> u64 {
    amounts.iter().map(|amount| amount[currency]).sum()
}

impl Model {
    fn holding(&self, currency: usize, lease: bool) -> u64 {
        self.held.iter().flatten().filter(|held| held.2 == lease).map(|held| held.1[currency]).sum()
    }

    fn left(&self, currency: usize) -> Option<u64> {
        let used = sum(&self.spent, currency) + self.holding(currency, true) + self.holding(currency, false);
        self.limits[currency].map(|limit| limit.saturating_sub(used))
    }

    fn fits(&self, each: [Option<u64>; 2], n: u64) -> bool {
        let room = |currency: usize| match (each[currency], self.left(currency)) {
            (_, None) => true,
            (None, Some(_)) => false,
            (Some(each), Some(left)) => each * n <= left,
        };
        room(0) && room(1)
    }

    /// Close the entry of a number if it is of this sort, and count what it cost.
    fn close(&mut self, which: usize, lease: bool, cost: Option<[u64; 2]>) -> bool {
        let Some(&Some((_, promised, sort))) = self.held.get(which) else { return false };
        if sort != lease {
            return false;
        }
        self.held[which] = None;
        if let Some(cost) = cost {
            self.spent.push(cost);
            let beyond = |i: usize| self.limits[i].map_or(0, |_| cost[i].saturating_sub(promised[i]));
            self.overshoot.push([beyond(0), beyond(1)]);
        }
        true
    }
}

fn run(ledger: &mut Ledger, model: &mut Model, step: Step) {
    // Numbers that were never given, and those of the other sort, are tried too.
    let id = |which: usize| which as u64 + 1;
    match step {
        Step::Reserve(most) => {
            let outcome = ledger.reserve(&bounds(most));
            assert_eq!(outcome.is_ok(), model.fits(most, 1));
            if let Ok(Reservation(id)) = outcome {
                model.held.push(Some((id, most.map(Option::unwrap_or_default), false)));
            }
        }
        Step::Several(each, n) => {
            let (fewer, reservation, refusal) = ledger.reserve_some(&amount(each).into(), n);
            let most = (0..=n).rev().find(|n| model.fits(each.map(Some), u64::from(*n))).unwrap();
            assert_eq!((fewer, reservation.is_some(), refusal.is_some()), (most, most > 0, most < n));
            if let Some(Reservation(id)) = reservation {
                model.held.push(Some((id, each.map(|each| each * u64::from(most)), false)));
            }
        }
        Step::Settle(which, actual) => {
            let outcome = ledger.settle(Reservation(id(which)), &amount(actual));
            assert_eq!(outcome.is_ok(), model.close(which, false, Some(actual)));
        }
        Step::Release(which) => {
            assert_eq!(ledger.release(Reservation(id(which))).is_ok(), model.close(which, false, None));
        }
        Step::Lease(parts, least) => {
            let outcome = ledger.lease(NonZeroU32::new(parts).unwrap(), &amount(least).into());
            assert_eq!(outcome.is_ok(), model.fits(least.map(Some), 1));
            if let Ok(lease) = outcome {
                let part = |i: usize| model.left(i).map(|left| left.div_ceil(u64::from(parts)).max(least[i]));
                let granted = [part(0), part(1)];
                assert_eq!(*lease.ledger.limits(), limits(granted));
                model.held.push(Some((lease.id, granted.map(Option::unwrap_or_default), true)));
            }
        }
        Step::TakeBack(which, spent) => {
            let outcome = ledger.take_back(id(which), &amount(spent));
            assert_eq!(outcome.is_ok(), model.close(which, true, Some(spent)));
        }
        Step::Lost(which, durable, lost) => {
            let outcome = ledger.settle_lost(id(which), &amount(durable), &amount(lost));
            let cost = [durable[0] + lost[0], durable[1] + lost[1]];
            let open = model.close(which, true, Some(cost));
            assert_eq!(outcome.is_ok(), open);
            if open {
                model.estimated.push(lost);
            }
        }
    }
}

proptest! {
    #[test]
    fn a_ledger_says_what_its_entries_say(
        limit in [prop::option::of(0u64..400), prop::option::of(0u64..400)],
        script in prop::collection::vec(step(), 0..60),
    ) {
        let mut ledger = Ledger::new(limits(limit));
        let mut model = Model { limits: limit, ..Model::default() };
        for step in script {
            run(&mut ledger, &mut model, step);
            for (i, currency) in TWO.into_iter().enumerate() {
                let held = (ledger.reserved().get(currency), ledger.leased().get(currency));
                prop_assert_eq!(held, (model.holding(i, false), model.holding(i, true)));
                let spent = ledger.spent().get(currency);
                let over = ledger.overshoot().get(currency);
                let estimated = ledger.estimated().get(currency);
                let sums = (sum(&model.spent, i), sum(&model.overshoot, i), sum(&model.estimated, i));
                prop_assert_eq!((spent, over, estimated), sums);
                if let Some(limit) = limit[i] {
                    prop_assert!(spent + held.0 + held.1 <= limit + over);
                    prop_assert_eq!(Some(ledger.left(currency)), model.left(i));
                }
            }
            prop_assert_eq!(ledger.open(), model.held.iter().flatten().count());
        }
    }

    /// Workers with leases, some of which die with calls in flight. A call costs at most what was reserved for it.
    #[test]
    fn what_workers_really_spend_stays_within_the_budget(
        limit in 0u64..2000,
        calls in prop::collection::vec((0usize..3, 1u64..60, 0u64..60, 0u32..12), 0..120),
    ) {
        let tokens = |n: u64| Amount::ZERO.with(Currency::Generated, n);
        let mut run = Ledger::new(Bounds::NONE.with(Currency::Generated, Some(limit)));
        let mut workers = [None, None, None];
        let (mut paid, mut guessed) = (0, 0);
        for (worker, most, cost, fate) in calls {
            let need = Bounds::from(tokens(most));
            let slot = &mut workers[worker];
            if slot.is_none() {
                let lease = run.lease(NonZeroU32::new(6).unwrap(), &need).ok();
                *slot = lease.map(|lease| (lease, Vec::new()));
            }
            let Some((lease, pending)) = slot else { continue };
            let call = lease.ledger.reserve(&need).ok();
            if let Some(call) = call {
                pending.push((call, cost.min(most)));
                paid += cost.min(most);
            }
            if fate == 0 {
                let lost = *lease.ledger.reserved();
                guessed += lost.get(Currency::Generated);
                run.settle_lost(lease.id, lease.ledger.spent(), &lost).unwrap();
                *slot = None;
                continue;
            }
            if fate > 8 || call.is_none() {
                for (call, cost) in pending.drain(..) {
                    lease.ledger.settle(call, &tokens(cost)).unwrap();
                }
            }
            if call.is_none() {
                prop_assert_eq!(lease.ledger.open(), 0);
                run.take_back(lease.id, lease.ledger.spent()).unwrap();
                *slot = None;
            }
        }
        let flying = |ledger: &Ledger| ledger.spent().plus(ledger.reserved()).get(Currency::Generated);
        let leased: u64 = workers.iter().flatten().map(|(lease, _)| flying(&lease.ledger)).sum();
        let known = run.spent().get(Currency::Generated) + leased;
        prop_assert!(paid <= known && known <= limit, "{paid} paid, {known} known, {limit} allowed");
        prop_assert_eq!((*run.estimated(), *run.overshoot()), (tokens(guessed), Amount::ZERO));
    }
}

#[test]
fn counters_stop_at_their_end() {
    let all = Amount::ZERO.with(Currency::Prompt, u64::MAX);
    let mut ledger = Ledger::new(Bounds::NONE);
    let held = ledger.reserve(&all.into()).unwrap();
    let refusal = ledger.reserve(&Amount::ZERO.with(Currency::Prompt, 1).into()).unwrap_err();
    assert_eq!((refusal.left, refusal.limit), (0, u64::MAX));
    ledger.settle(held, &all).unwrap();
    let lease = ledger.lease(NonZeroU32::MIN, &Bounds::from(Amount::ZERO)).unwrap();
    ledger.take_back(lease.id, &all).unwrap();
    assert_eq!((*ledger.spent(), ledger.left(Currency::Prompt)), (all, 0));
}

#[test]
fn currencies_have_names() {
    for currency in Currency::ALL {
        assert_eq!(Currency::from_word(currency.as_str()), Ok(currency));
    }
    assert!(Currency::from_word("euros").is_err());
}
