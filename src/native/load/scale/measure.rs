//! Figures: latencies and their percentiles, what a process takes, what Envoy counts.

use std::time::Duration;

use super::ScaleError;
use crate::native::load::prometheus::Scrape;

/// Latencies of requests, in us.
#[derive(Clone, Debug, Default)]
pub struct Latencies(Vec<u32>);

/// What a process has used so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Memory in RAM, in bytes.
    pub rss_bytes: u64,
    /// Processor time, in ms.
    pub cpu_ms: u64,
}

/// A cumulative histogram of Envoy's, or what came between two of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Buckets(Vec<(f64, f64)>);

// === impl Latencies ===

impl Latencies {
    /// Adds one.
    pub fn add(&mut self, latency: Duration) {
        self.0.push(u32::try_from(latency.as_micros()).unwrap_or(u32::MAX));
    }

    /// Adds all of these.
    pub fn extend(&mut self, others: Latencies) {
        self.0.extend(others.0);
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The smallest value that this share (0 to 1) does not exceed, in ms; 0 of nothing.
    pub fn percentile_ms(&self, share: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let rank = (share * sorted.len() as f64).ceil() as usize;
        sorted.get(rank.saturating_sub(1)).map_or(0.0, |us| f64::from(*us) / 1_000.0)
    }
}

// === impl Usage ===

impl Usage {
    /// Reads it from `/proc`.
    ///
    /// # Errors
    /// When there is no such process, or no such file.
    pub fn of(pid: Option<u32>) -> Result<Usage, ScaleError> {
        let pid = pid.ok_or_else(|| ScaleError::new("the process does not run"))?;
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let rss_kib = rss.and_then(|rest| rest.split_ascii_whitespace().next()?.parse::<u64>().ok());
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
        // After the name in brackets: state is field 3, the times in user and system mode 14 and 15, in 1/100 s.
        let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        let times = fields.split_ascii_whitespace().skip(11).take(2).filter_map(|field| field.parse::<u64>().ok());
        let rss_bytes = rss_kib.ok_or_else(|| ScaleError::new("no VmRSS in /proc"))? * 1_024;
        Ok(Usage { rss_bytes, cpu_ms: times.sum::<u64>() * 10 })
    }
}

// === impl Buckets ===

impl Buckets {
    /// The histogram of that name; empty if there is none.
    pub fn of(scrape: &Scrape, name: &str) -> Buckets {
        let name = format!("{name}_bucket");
        let limit = |text: &String| if text == "+Inf" { Some(f64::INFINITY) } else { text.parse().ok() };
        let buckets = scrape.find(&name, &[]);
        Buckets(buckets.filter_map(|sample| Some((limit(sample.labels.get("le")?)?, sample.value))).collect())
    }

    /// What came since `earlier`.
    pub fn since(&self, earlier: &Buckets) -> Buckets {
        let before = |limit: f64| earlier.0.iter().find(|(found, _)| *found == limit).map_or(0.0, |(_, count)| *count);
        Buckets(self.0.iter().map(|(limit, count)| (*limit, count - before(*limit))).collect())
    }

    /// How many values.
    pub fn count(&self) -> f64 {
        self.0.last().map_or(0.0, |(_, count)| *count)
    }

    /// The limit of the first bucket that, with those before it, has this share (0 to 1) of the values.
    pub fn percentile_limit(&self, share: f64) -> Option<f64> {
        let wanted = share * self.count();
        self.0.iter().find(|(_, count)| *count > 0.0 && *count >= wanted).map(|(limit, _)| *limit)
    }

    /// The share of values up to `limit`, which must be a bucket's.
    pub fn share_up_to(&self, limit: f64) -> Option<f64> {
        let count = self.count();
        self.0.iter().find(|(found, _)| *found == limit && count > 0.0).map(|(_, up_to)| up_to / count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_by_nearest_rank() {
        let mut latencies = Latencies::default();
        assert_eq!(latencies.percentile_ms(0.5), 0.0);
        (1..=1_000).rev().for_each(|ms| latencies.add(Duration::from_millis(ms)));
        assert_eq!(latencies.percentile_ms(0.5), 500.0);
        assert_eq!(latencies.percentile_ms(0.99), 990.0);
        assert_eq!(latencies.percentile_ms(1.0), 1_000.0);
    }

    #[test]
    fn this_process_has_memory_and_time() {
        let usage = Usage::of(Some(std::process::id())).unwrap();
        assert!(usage.rss_bytes > 1 << 20);
        assert!(Usage::of(None).is_err());
    }

    #[test]
    fn buckets_between_two_scrapes() {
        let scrape = |below_1: u32, below_1000: u32, all: u32| {
            Buckets::of(
                &Scrape::parse(&format!(
                    "s_bucket{{le=\"1\"}} {below_1}\ns_bucket{{le=\"1000\"}} {below_1000}\ns_bucket{{le=\"+Inf\"}} {all}\n"
                )),
                "s",
            )
        };
        let between = scrape(100, 1_099, 1_100).since(&scrape(50, 50, 50));
        assert_eq!(between.count(), 1_050.0);
        assert_eq!(between.percentile_limit(0.99), Some(1_000.0));
        assert_eq!(between.percentile_limit(1.0), Some(f64::INFINITY));
        assert!(between.share_up_to(1_000.0).unwrap() > 0.999);
        assert_eq!(Buckets::default().percentile_limit(0.5), None);
    }
}
