//! The command line.

use std::io::{Error, Result};

/// What the stub was told.
pub struct Settings {
    /// Milliseconds an answer is held back: always, or in the median.
    pub latency: f64,
    /// Their 99th percentile; always the same where it is not above `latency`.
    pub p99: f64,
    /// Tokens of a reply with log-probabilities.
    pub tokens: usize,
    /// Alternatives listed at each of them.
    pub top: usize,
    /// Files of the certificate and its key, in PEM, to speak TLS.
    pub tls: Option<(String, String)>,
}

impl Settings {
    /// Read `name=value` arguments.
    pub fn read(arguments: impl Iterator<Item = String>) -> Result<Self> {
        let mut settings = Self { latency: 0.0, p99: 0.0, tokens: 512, top: 16, tls: None };
        for argument in arguments {
            let known = argument.split_once('=').and_then(|(name, value)| settings.set(name, value));
            known.ok_or_else(|| {
                Error::other(format!(
                    "{argument:?} is no setting; use latency=MS p99=MS tokens=N top=N tls=CERTIFICATE,KEY"
                ))
            })?;
        }
        Ok(settings)
    }

    fn set(&mut self, name: &str, value: &str) -> Option<()> {
        match name {
            "latency" => self.latency = value.parse().ok()?,
            "p99" => self.p99 = value.parse().ok()?,
            "tokens" => self.tokens = value.parse().ok()?,
            "top" => self.top = value.parse().ok()?,
            "tls" => self.tls = value.split_once(',').map(|(chain, key)| (chain.to_owned(), key.to_owned())),
            _ => return None,
        }
        Some(())
    }
}
