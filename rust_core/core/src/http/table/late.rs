//! What is late, and which connections make way for others.

use std::mem::take;

use super::{Due, ExchangeTable, Stage};
use crate::http::{Fault, Micros};

impl ExchangeTable {
    /// Look at a connection at this moment or before; at least now and then, as much can become late meanwhile.
    pub(super) fn watch(&mut self, slot: u32, moment: Micros, now: Micros) {
        let moment = moment.min(now.saturating_add(self.limits.idle));
        let Some(Some(connection)) = self.connections.get_mut(slot as usize) else { return };
        if let Some(due) = connection.due {
            if due <= moment {
                return;
            }
            self.agenda.remove(&(due, Due::Connection(slot)));
        }
        connection.due = Some(moment);
        self.agenda.insert((moment, Due::Connection(slot)));
    }

    /// See whether anything of a connection is late, else look again when it could be.
    pub(super) fn look_at(&mut self, slot: u32, now: Micros) {
        let limits = self.limits;
        let Some(connection) = self.peek(slot) else { return };
        let (stage, token) = (connection.stage, connection.token);
        let deadline = self.exchanges.get(&token).map_or(now, |exchange| exchange.deadline);
        let (mut due, mut fault) = (deadline, Fault::Late);
        match stage {
            Stage::Answered | Stage::Closing => return,
            Stage::Opening => {
                (due, fault) = (deadline.min(connection.sent.saturating_add(limits.connect)), Fault::ConnectLate);
            }
            Stage::Idle => due = connection.moment.saturating_add(limits.keep),
            Stage::Taken | Stage::Sent => {
                let silent = connection.moment.saturating_add(limits.idle);
                if connection.reader.headed() && silent < due {
                    (due, fault) = (silent, Fault::Silent);
                } else if connection.unproven > 0 && !connection.answered && !connection.reader.begun() && now < due {
                    let accepted = connection.sent.saturating_add(limits.accepted);
                    if now < accepted {
                        due = due.min(accepted);
                    } else if stage == Stage::Sent {
                        self.actions.checks.push(slot);
                    } else {
                        due = due.min(now.saturating_add(limits.accepted));
                    }
                }
            }
        }
        if now < due {
            self.watch(slot, due, now);
            return;
        }
        self.close_slot(slot);
        if stage != Stage::Idle {
            self.fail(token, fault, now);
        }
    }

    /// Whether a connection that was served is to be closed, as new ones are not served while it is kept.
    ///
    /// Servers with few threads and one connection a thread look like that.
    pub(super) fn crowds(&mut self, slot: u32, now: Micros) -> bool {
        let Some(connection) = self.peek(slot) else { return false };
        let (origin, sent) = (connection.origin as usize, connection.sent);
        if self.origins[origin].unserved.is_empty() {
            return false;
        }
        if !self.origins[origin].served(slot) {
            let oldest = self.sent(self.origins[origin].unserved.first());
            if now.saturating_sub(oldest) > self.limits.patience && sent > oldest {
                self.origins[origin].crowded = now.saturating_add(self.limits.crowded);
            }
        }
        let pool = &self.origins[origin];
        !pool.unserved.is_empty() && now < pool.crowded
    }

    fn sent(&self, slot: Option<&u32>) -> Micros {
        slot.and_then(|&slot| self.peek(slot)).map_or(0, |connection| connection.sent)
    }

    /// Close idle connections where new ones are not served.
    pub(super) fn look_at_origin(&mut self, origin: u32, now: Micros) {
        let limits = self.limits;
        let pool = &self.origins[origin as usize];
        let moment = pool.idle.first().and_then(|&slot| self.peek(slot)).map(|connection| connection.moment);
        let unserved = pool.unserved.first();
        let (Some(moment), Some(_)) = (moment, unserved) else {
            self.origins[origin as usize].looking = false;
            return;
        };
        if now.saturating_sub(moment.max(self.sent(unserved))) < limits.patience {
            self.agenda.insert((now.saturating_add(limits.patience), Due::Origin(origin)));
            return;
        }
        let pool = &mut self.origins[origin as usize];
        pool.looking = false;
        pool.crowded = now.saturating_add(limits.crowded);
        for slot in take(&mut pool.idle) {
            self.close_slot(slot);
        }
    }
}
