//! The order in which ready tasks are served.

use std::collections::{BTreeMap, BTreeSet};

use super::amount::Currency;
use super::ledger::Ledger;
use super::work::WorkKind;

/// Where a ready task stands: what it would start, and of which currency there was too little when it was asked last, and
/// how much one draw or row needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stand {
    pub kind: WorkKind,
    pub short: Option<(Currency, u64)>,
}

/// Ready tasks by start tag, in queues of those that are held up by the same.
///
/// So many refused tasks cost nothing while there is too little for each of them, and a run without room for rollouts looks
/// at no draws.
#[derive(Clone, Debug, Default)]
pub(super) struct Order(BTreeMap<(WorkKind, Option<Currency>), Queue>);

#[derive(Clone, Debug, Default)]
struct Queue {
    tags: BTreeSet<(u128, u32)>,
    needs: BTreeSet<(u64, u32)>,
}

impl Order {
    pub(super) fn insert(&mut self, task: u32, tag: u128, stand: Stand) {
        let queue = self.0.entry(stand.queue()).or_default();
        queue.tags.insert((tag, task));
        queue.needs.extend(stand.short.map(|(_, need)| (need, task)));
    }

    pub(super) fn remove(&mut self, task: u32, tag: u128, stand: Stand) {
        let Some(queue) = self.0.get_mut(&stand.queue()) else { return };
        queue.tags.remove(&(tag, task));
        if let Some((_, need)) = stand.short {
            queue.needs.remove(&(need, task));
        }
    }

    /// The task with the smallest start tag of which something may start; of equal tags the one that was added first.
    pub(super) fn first(&self, lanes: u32, ledger: &Ledger) -> Option<u32> {
        let open = |kind: WorkKind, short: Option<Currency>, queue: &Queue| {
            (kind == WorkKind::Rows || lanes > 0) && short.is_none_or(|currency| queue.suffices(currency, ledger))
        };
        let queues = self.0.iter().filter(|((kind, short), queue)| open(*kind, *short, queue));
        queues.filter_map(|(_, queue)| queue.tags.first()).min().map(|(_, task)| *task)
    }
}

impl Stand {
    fn queue(&self) -> (WorkKind, Option<Currency>) {
        (self.kind, self.short.map(|(currency, _)| currency))
    }
}

impl Queue {
    /// Whether enough is left for the smallest need.
    fn suffices(&self, currency: Currency, ledger: &Ledger) -> bool {
        let need = self.needs.first().map_or(0, |(need, _)| *need);
        ledger.limits().get(currency).is_none() || ledger.left(currency) >= need
    }
}
