//! What the stub counts.

use std::collections::HashMap;
use std::time::Instant;

/// Requests, connections, and how long clients took from one answer to their next request.
#[derive(Default)]
pub struct Book {
    requests: u64,
    connections: u64,
    peak: u64,
    /// Conversations that were told to call a tool, by number: since when they have their answer.
    waiting: HashMap<u64, Instant>,
    /// Microseconds from the last byte of an answer to the last byte of the next request of its conversation.
    gaps: Vec<u64>,
}

impl Book {
    /// Note a connection.
    pub fn opened(&mut self) {
        self.connections += 1;
        self.peak = self.peak.max(self.connections);
    }

    /// Note the end of one.
    pub fn closed(&mut self) {
        self.connections -= 1;
    }

    /// Note a whole request.
    pub fn came(&mut self, conversation: Option<u64>) {
        self.requests += 1;
        if let Some(since) = conversation.and_then(|number| self.waiting.remove(&number)) {
            self.gaps.push(u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX));
        }
    }

    /// Note that an answer was handed out whole, after which its conversation goes on.
    pub fn handed(&mut self, conversation: Option<u64>) {
        if let Some(number) = conversation {
            self.waiting.insert(number, Instant::now());
        }
    }

    /// Say what came since the last report: `requests`; `connections` that are open and the most there were (`peak`);
    /// and of the `gaps` how many there are, their median, 99th percentile and maximum in microseconds, zero without any.
    pub fn report(&mut self) -> String {
        let Self { requests, connections, peak, .. } = *self;
        let gaps = &mut self.gaps;
        gaps.sort_unstable();
        let at = |percent: usize| gaps.get(gaps.len() * percent / 100).or(gaps.last()).copied().unwrap_or_default();
        let line = format!(
            r#"{{"requests":{requests},"connections":{connections},"peak":{peak},"gaps":{},"p50":{},"p99":{},"max":{}}}"#,
            gaps.len(),
            at(50),
            at(99),
            at(100),
        );
        (self.requests, self.peak, self.gaps) = (0, connections, Vec::new());
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_counts_what_came_since_the_last_one() {
        let mut book = Book::default();
        book.opened();
        book.opened();
        book.closed();
        book.came(Some(7));
        book.handed(Some(7));
        book.came(Some(7));
        book.came(None);
        assert!(book.report().starts_with(r#"{"requests":3,"connections":1,"peak":2,"gaps":1,"#));
        assert_eq!(book.report(), r#"{"requests":0,"connections":1,"peak":1,"gaps":0,"p50":0,"p99":0,"max":0}"#);
    }

    #[test]
    fn a_gap_is_measured_within_one_conversation() {
        let mut book = Book::default();
        book.handed(Some(1));
        book.came(Some(2));
        assert!(book.report().contains(r#""gaps":0"#));
        book.came(Some(1));
        assert!(book.report().contains(r#""gaps":1"#));
    }
}
