//! What a fake engine is started with. The command line's flags are the fields' names.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use super::events::{EventEncoding, EventFormat, HashForm, Switch};
use super::publisher::PublisherFaults;
use crate::fingerprint::BlockSize;

/// Options of one engine.
#[derive(Clone, Debug, clap::Args)]
pub struct EngineOptions {
    /// The engine's name, sent with every response as `x-engine-id`.
    #[arg(long, default_value = "fake-engine")]
    pub id: String,
    /// Where to serve HTTP: ip:port; port 0 picks a free one.
    #[arg(long, default_value = "127.0.0.1:8000")]
    pub listen: SocketAddr,
    /// Where to publish KV events (tcp://ip:port, `*` for any address); not published without it.
    #[arg(long)]
    pub kv_events: Option<String>,
    /// Where to answer replay requests (tcp://ip:port); not answered without it.
    #[arg(long, requires = "kv_events")]
    pub kv_replay: Option<String>,
    /// Topic of published batches.
    #[arg(long, default_value = "")]
    pub topic: String,
    /// The one model served.
    #[arg(long, default_value = "fake-model")]
    pub model: String,
    /// A folder with the model's tokenizer.json, tokenizer_config.json and chat_template.jinja; without it a token is a byte
    /// of text, and there are no conversations.
    #[arg(long)]
    pub model_dir: Option<PathBuf>,
    /// A LoRA adapter on it, which requests name in place of the model; may be given several times.
    #[arg(long)]
    pub lora: Vec<String>,
    /// Capacity of the block cache, in blocks.
    #[arg(long, default_value = "4096")]
    pub blocks: NonZeroUsize,
    /// Tokens in a block.
    #[arg(long, default_value = "16", value_parser = parse_block_size)]
    pub block_size: BlockSize,
    /// Layout of events and replies: array as in vLLM 0.23, map as in vLLM 0.26, others by engine and version.
    #[arg(long, value_enum, default_value_t)]
    pub event_encoding: EventEncoding,
    /// Layout from the batch --switch-encoding-at on.
    #[arg(long, value_enum, requires = "switch_encoding_at")]
    pub switch_encoding: Option<EventEncoding>,
    /// Number of the first batch in the layout of --switch-encoding.
    #[arg(long, requires = "switch_encoding")]
    pub switch_encoding_at: Option<u64>,
    /// Form of published block hashes: 64-bit integers or 32 bytes.
    #[arg(long, value_enum, default_value_t)]
    pub hash_form: HashForm,
    /// Ranks of data parallelism, each with a cache of its own, and with publisher and replay socket at the port of
    /// rank 0 and its number.
    #[arg(long, default_value = "1", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub data_parallel_size: u16,
    /// What goes wrong with batches.
    #[command(flatten)]
    pub faults: PublisherFaults,
    /// Batches kept for replay.
    #[arg(long, default_value = "10000")]
    pub replay_buffer: NonZeroUsize,
    /// Requests that may run at once; more wait.
    #[arg(long, default_value = "8")]
    pub max_running: NonZeroUsize,
    /// Whether blocks filled by generated tokens are cached.
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    pub generated_tokens_cached: bool,
    /// How long things take.
    #[command(flatten)]
    pub timing: Timing,
}

/// How long the modelled GPU takes. One prompt is computed at a time; the time to first token of a prompt that does not
/// wait is `base_ttft_us` and `prefill_us_per_token` for each token that is not cached.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Timing {
    /// Time to first token of a prompt that is wholly cached, in microseconds.
    #[arg(long, default_value_t = Timing::DEFAULT.base_ttft_us)]
    pub base_ttft_us: u64,
    /// Time to compute one prompt token that is not cached, in microseconds.
    #[arg(long, default_value_t = Timing::DEFAULT.prefill_us_per_token)]
    pub prefill_us_per_token: u64,
    /// Time from one generated token to the next, in microseconds.
    #[arg(long, default_value_t = Timing::DEFAULT.decode_us_per_token)]
    pub decode_us_per_token: u64,
}

// === impl EngineOptions ===

impl EngineOptions {
    /// How a rank's events are written.
    pub fn event_format(&self, data_parallel_rank: u16) -> EventFormat {
        let switch = self.switch_encoding_at.zip(self.switch_encoding);
        let switch = switch.map(|(sequence, encoding)| Switch { sequence, encoding });
        EventFormat { encoding: self.event_encoding, hash_form: self.hash_form, data_parallel_rank, switch }
    }
}

impl Default for EngineOptions {
    /// The command line's defaults, but on a free port.
    fn default() -> EngineOptions {
        EngineOptions {
            id: "fake-engine".to_owned(),
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            kv_events: None,
            kv_replay: None,
            topic: String::new(),
            model: "fake-model".to_owned(),
            model_dir: None,
            lora: Vec::new(),
            blocks: NonZeroUsize::MIN.saturating_add(4095),
            block_size: BlockSize::DEFAULT,
            event_encoding: EventEncoding::default(),
            switch_encoding: None,
            switch_encoding_at: None,
            hash_form: HashForm::default(),
            data_parallel_size: 1,
            faults: PublisherFaults::default(),
            replay_buffer: NonZeroUsize::MIN.saturating_add(9_999),
            max_running: NonZeroUsize::MIN.saturating_add(7),
            generated_tokens_cached: true,
            timing: Timing::DEFAULT,
        }
    }
}

fn parse_block_size(text: &str) -> Result<BlockSize, String> {
    let tokens: u64 = text.parse().map_err(|_| format!("not a number, allowed are 1 to {} tokens", BlockSize::MAX))?;
    BlockSize::try_new(tokens).map_err(|invalid| invalid.to_string())
}

// === impl Timing ===

impl Timing {
    /// Near a 7 B model on one data-centre GPU: 10,000 prompt tokens a second.
    pub const DEFAULT: Timing = Timing { base_ttft_us: 5_000, prefill_us_per_token: 100, decode_us_per_token: 2_000 };

    /// From the start of a prompt's computation to its first token.
    pub fn prefill(&self, uncached_tokens: usize) -> Duration {
        let tokens = u64::try_from(uncached_tokens).unwrap_or(u64::MAX);
        Duration::from_micros(self.base_ttft_us.saturating_add(self.prefill_us_per_token.saturating_mul(tokens)))
    }

    /// From the first token to the one `tokens` later.
    pub fn decode(&self, tokens: usize) -> Duration {
        Duration::from_micros(self.decode_us_per_token.saturating_mul(u64::try_from(tokens).unwrap_or(u64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        options: EngineOptions,
    }

    fn parse(flags: &[&str]) -> Result<EngineOptions, String> {
        let program = Program::try_parse_from(std::iter::once(&"fake-engine").chain(flags));
        program.map(|program| program.options).map_err(|error| error.to_string())
    }

    #[test]
    fn the_defaults_are_the_command_lines() {
        let mut defaults = EngineOptions::default();
        defaults.listen.set_port(8000);
        assert_eq!(format!("{:?}", parse(&[]).unwrap()), format!("{defaults:?}"));
    }

    #[test]
    fn faults_name_the_flag_and_the_value() {
        let faults = [
            (["--block-size", "0"], "block_size is 0"),
            (["--blocks", "0"], "'0' for '--blocks"),
            (["--event-encoding", "json"], "'json' for '--event-encoding"),
            (["--kv-replay", "tcp://127.0.0.1:1"], "--kv-events"),
        ];
        for (flags, expected) in faults {
            let error = parse(&flags).unwrap_err();
            assert!(error.contains(expected), "{flags:?}: {error}");
        }
    }

    #[test]
    fn time_grows_with_uncached_tokens() {
        assert_eq!(Timing::DEFAULT.prefill(0), Duration::from_millis(5));
        assert_eq!(Timing::DEFAULT.prefill(1_000), Duration::from_millis(105));
        assert_eq!(Timing::DEFAULT.decode(3), Duration::from_millis(6));
    }
}
