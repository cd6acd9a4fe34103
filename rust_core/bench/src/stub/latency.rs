//! How long an answer is held back.

use std::time::Duration;

use fastrand::Rng;

use crate::settings::Settings;

/// The standard normal's 99th percentile.
const NORMAL_P99: f64 = 2.326_347_874;

/// A lognormal time, or one that is always the same.
pub struct Latency {
    median: f64,
    sigma: f64,
    random: Rng,
}

impl Latency {
    /// What the settings ask for.
    pub fn new(settings: &Settings) -> Self {
        let spread = (settings.p99 / settings.latency).ln() / NORMAL_P99;
        let sigma = if spread.is_finite() { spread.max(0.0) } else { 0.0 };
        Self { median: settings.latency / 1000.0, sigma, random: Rng::with_seed(1) }
    }

    /// The next answer's; None for at once.
    pub fn next(&mut self) -> Option<Duration> {
        let seconds = if self.sigma > 0.0 { self.median * (self.sigma * self.normal()).exp() } else { self.median };
        (seconds > 0.0).then(|| Duration::try_from_secs_f64(seconds).unwrap_or_default())
    }

    /// A standard normal number, after G. E. P. Box and M. E. Muller, "A Note on the Generation of Random Normal
    /// Deviates" (1958).
    fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.random.f64()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.random.f64()).cos()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(latency: f64, p99: f64) -> Settings {
        Settings { latency, p99, tokens: 1, top: 1, tls: None }
    }

    #[test]
    fn nothing_is_held_back_without_a_latency() {
        assert_eq!(Latency::new(&settings(0.0, 0.0)).next(), None);
    }

    #[test]
    fn a_latency_alone_is_always_the_same() {
        assert_eq!(Latency::new(&settings(250.0, 0.0)).next(), Some(Duration::from_millis(250)));
    }

    #[test]
    fn a_lognormal_latency_has_the_median_and_the_percentile_that_were_asked_for() {
        let mut latency = Latency::new(&settings(100.0, 400.0));
        let mut drawn: Vec<_> = (0..40_000).filter_map(|_| latency.next()).map(|time| time.as_secs_f64()).collect();
        drawn.sort_by(f64::total_cmp);
        assert!((drawn[20_000] - 0.100).abs() < 0.003, "{}", drawn[20_000]);
        assert!((drawn[39_600] - 0.400).abs() < 0.025, "{}", drawn[39_600]);
    }
}
