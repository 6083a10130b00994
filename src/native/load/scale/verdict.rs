//! What was to hold, and whether it did.

/// All verdicts, in order.
#[derive(Debug, Default)]
pub struct Verdicts(Vec<Verdict>);

#[derive(Debug)]
struct Verdict {
    what: &'static str,
    limit: String,
    measured: String,
    met: bool,
}

// === impl Verdicts ===

impl Verdicts {
    /// `what` has to be at most `limit`.
    pub fn at_most(&mut self, what: &'static str, limit: f64, measured: f64) {
        self.add(what, format!("at most {limit}"), format!("{measured:.3}"), measured <= limit);
    }

    /// `what` has to be at least `limit`.
    pub fn at_least(&mut self, what: &'static str, limit: f64, measured: f64) {
        self.add(what, format!("at least {limit}"), format!("{measured:.4}"), measured >= limit);
    }

    /// `what` must not happen.
    pub fn none(&mut self, what: &'static str, count: usize) {
        self.add(what, "none".into(), count.to_string(), count == 0);
    }

    /// Whether all are met.
    pub fn are_met(&self) -> bool {
        self.0.iter().all(|verdict| verdict.met)
    }

    fn add(&mut self, what: &'static str, limit: String, measured: String, met: bool) {
        self.0.push(Verdict { what, limit, measured, met });
    }
}

impl std::fmt::Display for Verdicts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "| What must hold | Limit | Measured | |\n|---|---|---|---|")?;
        self.0.iter().try_for_each(|Verdict { what, limit, measured, met }| {
            writeln!(f, "| {what} | {limit} | {measured} | {} |", if *met { "met" } else { "MISSED" })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_figure_that_is_missed_is_enough() {
        let mut verdicts = Verdicts::default();
        verdicts.at_most("ratio", 1.5, 1.5);
        verdicts.at_least("share", 0.999, 0.9991);
        verdicts.none("failures", 0);
        assert!(verdicts.are_met());
        verdicts.none("failures", 1);
        assert!(!verdicts.are_met());
        assert!(verdicts.to_string().contains("| failures | none | 1 | MISSED |"));
    }
}
