//! What the demo prints: a line a request, and one table at the end.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use super::client::Completion;

/// One answered request.
#[derive(Clone, Debug)]
pub(super) struct Served {
    /// Conversation or one-off.
    pub name: String,
    /// Turn of the conversation; `None` for a one-off.
    pub turn: Option<usize>,
    /// The filter's reason code; empty without the filter.
    pub reason_code: String,
    /// The filter's detail.
    pub detail: String,
    /// Tokens that the filter says the replica holds.
    pub matched_tokens: String,
    /// The replica that answered, by its own word.
    pub replica: String,
    /// Prompt tokens, as the engine counts them.
    pub prompt_tokens: u64,
    /// Those it had in its cache.
    pub cached_tokens: u64,
    /// Time to first token.
    pub time_to_first_token: Duration,
}

/// All requests of one way of routing.
#[derive(Clone, Debug, Default)]
pub(super) struct Pass(pub Vec<Served>);

/// Two passes side by side.
pub(super) struct Table<'a> {
    pub round_robin: &'a Pass,
    pub warmroute: &'a Pass,
}

/// The head of the lines.
pub(super) const LINE_HEAD: &str =
    "conversation  turn  reason_code   detail               matched  replica     cached / prompt    ttft";

// === impl Served ===

impl Served {
    pub(super) fn new(name: String, turn: Option<usize>, completion: &Completion) -> Served {
        let header = |name: &str| completion.header(name).to_owned();
        Served {
            name,
            turn,
            reason_code: header("x-inferencecache-reason-code"),
            detail: header("x-inferencecache-detail"),
            matched_tokens: header("x-inferencecache-matched-tokens"),
            replica: header("x-engine-id"),
            prompt_tokens: completion.prompt_tokens,
            cached_tokens: completion.cached_tokens,
            time_to_first_token: completion.time_to_first_token,
        }
    }
}

impl Display for Served {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let turn = self.turn.map_or_else(|| "-".to_owned(), |turn| turn.to_string());
        write!(
            f,
            "{:<12}  {turn:>4}  {:<12}  {:<19}  {:>7}  {:<10}  {:>6} / {:>6}  {:>4} ms",
            self.name,
            or_dash(&self.reason_code),
            or_dash(&self.detail),
            or_dash(&self.matched_tokens),
            self.replica,
            self.cached_tokens,
            self.prompt_tokens,
            self.time_to_first_token.as_millis(),
        )
    }
}

// === impl Pass ===

impl Pass {
    /// Share of prompt tokens served from cache, in percent.
    pub(super) fn cached_percent(&self) -> f64 {
        let cached: u64 = self.0.iter().map(|served| served.cached_tokens).sum();
        let prompt: u64 = self.0.iter().map(|served| served.prompt_tokens).sum();
        100.0 * cached as f64 / prompt.max(1) as f64
    }

    /// The time to first token that `percent` of the requests do not exceed (nearest rank).
    pub(super) fn time_to_first_token(&self, percent: usize) -> Duration {
        let mut times: Vec<Duration> = self.0.iter().map(|served| served.time_to_first_token).collect();
        times.sort_unstable();
        let rank = (times.len() * percent).div_ceil(100);
        times.get(rank.saturating_sub(1)).copied().unwrap_or_default()
    }

    /// How many requests have each value of a field.
    pub(super) fn count<'a>(&'a self, field: impl Fn(&'a Served) -> &'a str) -> BTreeMap<&'a str, usize> {
        let mut counts = BTreeMap::new();
        for served in &self.0 {
            *counts.entry(field(served)).or_default() += 1;
        }
        counts
    }
}

// === impl Table ===

impl Display for Table<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let passes = [self.round_robin, self.warmroute];
        let milliseconds = |percent| passes.map(|pass| format!("{} ms", pass.time_to_first_token(percent).as_millis()));
        row(f, "", ["round robin".into(), "warmroute".into()])?;
        row(f, "requests", passes.map(|pass| pass.0.len().to_string()))?;
        row(f, "prompt tokens served from cache", passes.map(|pass| format!("{:.1} %", pass.cached_percent())))?;
        row(f, "time to first token, p50", milliseconds(50))?;
        row(f, "time to first token, p90", milliseconds(90))?;
        counts(f, "requests of", passes.map(|pass| pass.count(|served| &served.replica)))?;
        counts(f, "", passes.map(|pass| pass.count(|served| &served.reason_code)))?;
        counts(f, "  detail", passes.map(|pass| pass.count(|served| &served.detail)))
    }
}

fn row(f: &mut Formatter<'_>, name: &str, [left, right]: [String; 2]) -> fmt::Result {
    writeln!(f, "{name:<34}{left:>14}{right:>14}")
}

/// A row for every value; requests without one (no filter, nothing to add) have none.
fn counts(f: &mut Formatter<'_>, name: &str, passes: [BTreeMap<&str, usize>; 2]) -> fmt::Result {
    let values: std::collections::BTreeSet<&str> = passes.iter().flat_map(BTreeMap::keys).copied().collect();
    for value in values.into_iter().filter(|value| !value.is_empty()) {
        let cell = |pass: &BTreeMap<&str, usize>| pass.get(value).map_or_else(|| "-".to_owned(), usize::to_string);
        row(f, format!("{name} {value}").trim_start_matches(' '), passes.each_ref().map(cell))?;
    }
    Ok(())
}

fn or_dash(text: &str) -> &str {
    if text.is_empty() { "-" } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn served(milliseconds: u64, cached_tokens: u64) -> Served {
        Served {
            name: "chat-01".into(),
            turn: Some(2),
            reason_code: "NO_HINT".into(),
            detail: "miss".into(),
            matched_tokens: String::new(),
            replica: "engine-0".into(),
            prompt_tokens: 100,
            cached_tokens,
            time_to_first_token: Duration::from_millis(milliseconds),
        }
    }

    #[test]
    fn percentiles_are_nearest_rank() {
        let pass = Pass((1..=10).map(|time| served(time, 0)).collect());
        assert_eq!(pass.time_to_first_token(50), Duration::from_millis(5));
        assert_eq!(pass.time_to_first_token(90), Duration::from_millis(9));
        assert_eq!(Pass::default().time_to_first_token(50), Duration::ZERO);
    }

    #[test]
    fn the_table_has_both_passes() {
        let (round_robin, warmroute) = (Pass(vec![served(10, 25)]), Pass(vec![served(4, 75), served(4, 75)]));
        let table = Table { round_robin: &round_robin, warmroute: &warmroute }.to_string();
        let has = |words: [&str; 3]| table.lines().any(|line| words.iter().all(|word| line.contains(word)));
        assert!(has(["prompt tokens served from cache", "25.0 %", "75.0 %"]), "{table}");
        assert!(has(["requests of engine-0", " 1", " 2"]), "{table}");
    }
}
