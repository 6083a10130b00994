//! The headers that the filter reads and writes, and that a client therefore must not smuggle past it.

/// What the filter writes. On an incoming request they are removed unread.
pub const OUTPUT: [&str; 5] = [DESTINATION_ENDPOINT, REASON_CODE, DETAIL, REPLICA_ID, MATCHED_TOKENS];

/// What the filter reads. They are removed afterwards, whether or not they are switched on.
pub const INPUT: [&str; 10] = [
    PREFIX_HASH,
    PREFIX_TOKEN_COUNT,
    BLOCK_HASHES,
    BLOCK_TOKEN_COUNTS,
    BLOCK_SIZE,
    MODEL_ID,
    HASH_SCHEME,
    ADAPTER_ID,
    SLO_TTFT_MS,
    SLO_TBT_MS,
];

/// `ip:port[,ip:port…]`, best first: the header that Gateway API endpoint pickers set and an `override_host`
/// load-balancing policy reads.
pub const DESTINATION_ENDPOINT: &str = "x-gateway-destination-endpoint";
/// The contract's reason code.
pub const REASON_CODE: &str = "x-inferencecache-reason-code";
/// What stands behind the reason code.
pub const DETAIL: &str = "x-inferencecache-detail";
/// The best replica's id.
pub const REPLICA_ID: &str = "x-inferencecache-replica-id";
/// Tokens of the prompt that the best replica holds.
pub const MATCHED_TOKENS: &str = "x-inferencecache-matched-tokens";

/// The rank of data parallelism that an engine is to serve a request with: the header that vLLM reads. A client's own is
/// removed only where the filter is told to write it.
pub const DATA_PARALLEL_RANK: &str = "x-data-parallel-rank";

/// The key of the whole prefix, in hex.
pub const PREFIX_HASH: &str = "x-inferencecache-prefix-hash";
/// Tokens that the prefix hash covers.
pub const PREFIX_TOKEN_COUNT: &str = "x-inferencecache-prefix-token-count";
/// The keys of the blocks, in hex of fixed width, one after the other.
pub const BLOCK_HASHES: &str = "x-inferencecache-block-hashes";
/// Tokens of each block, separated by commas.
pub const BLOCK_TOKEN_COUNTS: &str = "x-inferencecache-block-token-counts";
/// Tokens of every block, where they are all the same.
pub const BLOCK_SIZE: &str = "x-inferencecache-block-size";
/// The model.
pub const MODEL_ID: &str = "x-inferencecache-model-id";
/// The tag of the keys.
pub const HASH_SCHEME: &str = "x-inferencecache-hash-scheme";
/// The LoRA adapter.
pub const ADAPTER_ID: &str = "x-inferencecache-adapter-id";
/// The time to first token that the client asks for, in ms.
pub const SLO_TTFT_MS: &str = "x-inferencecache-slo-ttft-ms";
/// The time between tokens that the client asks for, in ms; part of the contract, without effect on the ranking.
pub const SLO_TBT_MS: &str = "x-inferencecache-slo-tbt-ms";

/// What the contract's header names begin with.
pub(super) const PREFIX: &str = "x-inferencecache-";

/// Whether `name`, in lower case, is one of [`OUTPUT`] or [`INPUT`].
pub fn is_routing_header(name: &str) -> bool {
    name == DESTINATION_ENDPOINT || (name.starts_with(PREFIX) && (OUTPUT.contains(&name) || INPUT.contains(&name)))
}

/// A bit for each of [`INPUT`].
const ALL_INPUT: u16 = (1 << INPUT.len()) - 1;

/// Which of [`INPUT`] are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InputHeaders {
    /// Bit n stands for `INPUT[n]`.
    enabled: u16,
}

// === impl InputHeaders ===

impl InputHeaders {
    /// All of them.
    pub fn all() -> InputHeaders {
        InputHeaders { enabled: ALL_INPUT }
    }

    /// None of them.
    pub fn none() -> InputHeaders {
        InputHeaders { enabled: 0 }
    }

    /// Adds the header of this name; false if it is not one of [`INPUT`].
    pub fn enable(&mut self, name: &str) -> bool {
        let bit = Self::bit(name);
        self.enabled |= bit;
        bit != 0
    }

    /// Whether the header of this name is read.
    pub fn enabled(self, name: &str) -> bool {
        self.enabled & Self::bit(name) != 0
    }

    fn bit(name: &str) -> u16 {
        INPUT.iter().position(|input| *input == name).map_or(0, |place| 1 << place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_input_and_output_names_are_routing_headers_and_others_are_not() {
        assert!(OUTPUT.iter().chain(&INPUT).all(|name| is_routing_header(name)));
        for name in ["x-inferencecache-", "x-inferencecache-other", "x-gateway-destination", "authorization", ""] {
            assert!(!is_routing_header(name), "{name}");
        }
    }

    #[test]
    fn each_input_header_has_a_switch_of_its_own() {
        for name in INPUT {
            let mut one = InputHeaders::none();
            assert!(one.enable(name));
            assert_eq!(INPUT.iter().filter(|other| one.enabled(other)).count(), 1);
            assert!(one.enabled(name) && InputHeaders::all().enabled(name) && !InputHeaders::none().enabled(name));
        }
        assert!(!InputHeaders::none().enable("authorization"));
    }
}
