//! Where we differ from the contract's server on purpose: plain defects that nobody can want are refused at ingest.
//!
//! A case whose expectation rests on such a defect is named here, with the rule that changes it. The name alone excuses
//! nothing: the case must also report something that the rule refuses.

use super::format::{Case, Step};
use super::messages::{Prefix, Update};

/// What is refused at ingest and counted, where the contract's server stores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    EmptyHash,
    EmptyReplicaId,
    TokenCountBelowOne,
    FutureTimestamp,
}

/// A case that a rule changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnPurpose {
    pub id: &'static str,
    pub rule: Rule,
    pub why: &'static str,
}

/// Every case that a rule changes, by its id in the case files of the contract's server.
pub const ON_PURPOSE: [OnPurpose; 7] = [
    OnPurpose {
        id: "155",
        rule: Rule::EmptyHash,
        why: "a prefix that was reported without a hash would be found by every request without input",
    },
    OnPurpose {
        id: "156",
        rule: Rule::EmptyHash,
        why: "as 155: what has no hash is not in the index, and makes its replica known to nobody",
    },
    OnPurpose {
        id: "158",
        rule: Rule::FutureTimestamp,
        why: "a report from a time to come would outlast its TTL, and every report after it",
    },
    OnPurpose { id: "159", rule: Rule::FutureTimestamp, why: "as 158: it would count as just reported until then" },
    OnPurpose { id: "166", rule: Rule::TokenCountBelowOne, why: "a prefix of no tokens saves nothing" },
    OnPurpose { id: "167", rule: Rule::TokenCountBelowOne, why: "a negative token count makes a negative score" },
    OnPurpose { id: "171", rule: Rule::EmptyReplicaId, why: "a hint without an id leads nowhere" },
];

/// What excuses the case with this id, if anything does.
pub fn excuse(id: &str, case: &Case) -> Option<&'static OnPurpose> {
    ON_PURPOSE.iter().find(|named| named.id == id && named.rule.refuses_some_of(case))
}

/// The rules that refuse something of the case, whether it is named or not.
pub fn rules_met(case: &Case) -> Vec<Rule> {
    let all = [Rule::EmptyHash, Rule::EmptyReplicaId, Rule::TokenCountBelowOne, Rule::FutureTimestamp];
    all.into_iter().filter(|rule| rule.refuses_some_of(case)).collect()
}

// === impl Rule ===

impl Rule {
    /// Whether something that the case reports is refused by this rule.
    pub fn refuses_some_of(self, case: &Case) -> bool {
        let mut now_ms = 0;
        case.steps.iter().any(|step| match step {
            Step::Advance { ms } => {
                now_ms += ms;
                false
            }
            Step::Ingest(update) => self.refuses(update, now_ms),
            _ => false,
        })
    }

    fn refuses(self, update: &Update, now_ms: i64) -> bool {
        match self {
            Rule::EmptyReplicaId => update.replica_id.is_empty(),
            Rule::FutureTimestamp => update.at_ms.is_some_and(|at_ms| at_ms > now_ms),
            Rule::EmptyHash => update.prefixes.iter().any(has_empty_hash),
            Rule::TokenCountBelowOne => update.prefixes.iter().any(has_count_below_one),
        }
    }
}

fn is_chain(prefix: &Prefix) -> bool {
    !prefix.block_hashes.is_empty() || !prefix.block_token_counts.is_empty()
}

fn has_empty_hash(prefix: &Prefix) -> bool {
    let in_chain = prefix.block_hashes.iter().any(|hash| hash.0.is_empty());
    in_chain || (!is_chain(prefix) && prefix.prefix_hash.0.is_empty())
}

/// Also where the sum of a chain's counts leaves int32, which wraps to a negative one.
fn has_count_below_one(prefix: &Prefix) -> bool {
    if !is_chain(prefix) {
        return prefix.token_count < 1;
    }
    let total: i64 = prefix.block_token_counts.iter().map(|count| i64::from(*count)).sum();
    prefix.block_token_counts.iter().any(|count| *count < 1) || total > i64::from(i32::MAX)
}
