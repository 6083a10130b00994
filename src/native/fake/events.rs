//! KV events as vLLM puts them on the wire.
//!
//! In: [`KvEvent`]s of one scheduler step. Out: one msgpack payload `[ts, events, data_parallel_rank]`. Two releases'
//! layouts: [`EventEncoding::Array`] is vLLM 0.22.1 to 0.23.0, events as positional arrays with the tag first;
//! [`EventEncoding::Map`] is vLLM 0.26, events as maps with `type` first. In both, fields at their default are
//! left out: here only the sliding window, which full attention has none of. Numbers take the shortest msgpack form and
//! the time is a float64, as vLLM's encoder does.

use std::sync::Arc;

use rmpv::Value;

use super::engine_key::EngineKey;

/// Where the blocks are: `medium` of every event.
const MEDIUM: &str = "GPU";
/// The only KV cache group of a model with one kind of attention.
const GROUP: u64 = 0;
/// That group's kind.
const GROUP_KIND: &str = "full_attention";
/// The number of every adapter; it is the name that tells them apart.
const LORA_ID: u64 = 1;

/// A change of the block cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KvEvent {
    /// Consecutive blocks of one sequence are cached now.
    BlockStored {
        /// Their keys, in order.
        keys: Vec<EngineKey>,
        /// The key of the block before them; none where they start the sequence.
        parent: Option<EngineKey>,
        /// Their tokens.
        token_ids: Vec<u32>,
        /// Tokens in each of them.
        block_size: usize,
        /// The LoRA adapter that computed them.
        lora: Option<Arc<str>>,
    },
    /// A block was evicted.
    BlockRemoved {
        /// Its key.
        key: EngineKey,
    },
    /// The cache was emptied.
    AllBlocksCleared,
}

/// The layout of events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum EventEncoding {
    /// Positional arrays, as in vLLM 0.23.
    Array,
    /// Tagged maps, as in vLLM 0.26.
    #[default]
    Map,
}

/// The form of published keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum HashForm {
    /// The low 64 bits as an unsigned integer, vLLM's default.
    #[default]
    Int,
    /// The 32 bytes.
    Bytes,
}

/// How events are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventFormat {
    /// Arrays or maps.
    pub encoding: EventEncoding,
    /// Integers or bytes.
    pub hash_form: HashForm,
    /// The rank that each batch states.
    pub data_parallel_rank: u16,
}

// === impl EventFormat ===

impl EventFormat {
    /// The payload of a batch published at `ts`, Unix time in seconds.
    ///
    /// # Errors
    /// When msgpack cannot hold it: a batch of more than 4 G items.
    pub fn encode_batch(self, ts: f64, events: &[KvEvent]) -> Result<Vec<u8>, rmpv::encode::Error> {
        let events = events.iter().map(|event| self.event(event)).collect();
        let batch = Value::Array(vec![Value::F64(ts), Value::Array(events), Value::from(self.data_parallel_rank)]);
        let mut payload = Vec::new();
        rmpv::encode::write_value(&mut payload, &batch)?;
        Ok(payload)
    }

    fn event(self, event: &KvEvent) -> Value {
        let (tag, fields) = match event {
            KvEvent::BlockStored { keys, parent, token_ids, block_size, lora } => {
                ("BlockStored", self.stored_fields(keys, *parent, token_ids, *block_size, lora.as_deref()))
            }
            KvEvent::BlockRemoved { key } => ("BlockRemoved", self.removed_fields(*key)),
            KvEvent::AllBlocksCleared => ("AllBlocksCleared", Vec::new()),
        };
        match self.encoding {
            EventEncoding::Array => {
                let values = fields.into_iter().map(|(_, value)| value);
                Value::Array(std::iter::once(Value::from(tag)).chain(values).collect())
            }
            EventEncoding::Map => {
                let entries = fields.into_iter().map(|(name, value)| (Value::from(name), value));
                Value::Map(std::iter::once((Value::from("type"), Value::from(tag))).chain(entries).collect())
            }
        }
    }

    fn stored_fields(
        self,
        keys: &[EngineKey],
        parent: Option<EngineKey>,
        token_ids: &[u32],
        block_size: usize,
        lora: Option<&str>,
    ) -> Vec<(&'static str, Value)> {
        // One entry per block even where a block has none; an adapter's name is part of each of its blocks' keys.
        let extra_keys = lora.map_or(Value::Nil, |name| Value::Array(vec![name.into()]));
        vec![
            ("block_hashes", self.keys(keys)),
            ("parent_block_hash", parent.map_or(Value::Nil, |key| self.key(key))),
            ("token_ids", token_ids.iter().map(|id| Value::from(*id)).collect::<Vec<_>>().into()),
            ("block_size", Value::from(block_size)),
            ("lora_id", lora.map_or(Value::Nil, |_| LORA_ID.into())),
            ("medium", Value::from(MEDIUM)),
            ("lora_name", lora.map_or(Value::Nil, Value::from)),
            ("extra_keys", Value::Array(vec![extra_keys; keys.len()])),
            ("group_idx", Value::from(GROUP)),
            ("kv_cache_spec_kind", Value::from(GROUP_KIND)),
        ]
    }

    fn removed_fields(self, key: EngineKey) -> Vec<(&'static str, Value)> {
        vec![("block_hashes", self.keys(&[key])), ("medium", Value::from(MEDIUM)), ("group_idx", Value::from(GROUP))]
    }

    fn keys(self, keys: &[EngineKey]) -> Value {
        Value::Array(keys.iter().map(|key| self.key(*key)).collect())
    }

    fn key(self, key: EngineKey) -> Value {
        match self.hash_form {
            HashForm::Int => Value::from(key.low_64()),
            HashForm::Bytes => Value::from(key.to_bytes().as_slice()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(format: EventFormat, event: KvEvent) -> Value {
        let payload = format.encode_batch(1.5, &[event]).unwrap();
        let batch = rmpv::decode::read_value(&mut payload.as_slice()).unwrap();
        let batch = batch.as_array().unwrap();
        assert_eq!(batch[0], Value::F64(1.5));
        assert_eq!(batch[2], Value::from(0));
        batch[1].as_array().unwrap()[0].clone()
    }

    #[test]
    fn a_removed_block_in_both_layouts() {
        let key = EngineKey::random_root();
        let event = KvEvent::BlockRemoved { key };
        let array = decode(
            EventFormat { encoding: EventEncoding::Array, hash_form: HashForm::Int, ..EventFormat::default() },
            event.clone(),
        );
        let hashes = Value::Array(vec![key.low_64().into()]);
        assert_eq!(array, Value::Array(vec!["BlockRemoved".into(), hashes, "GPU".into(), 0.into()]));

        let map = decode(
            EventFormat { encoding: EventEncoding::Map, hash_form: HashForm::Bytes, ..EventFormat::default() },
            event,
        );
        let hashes = Value::Array(vec![Value::Binary(key.to_bytes().to_vec())]);
        let expected = [("type", "BlockRemoved".into()), ("block_hashes", hashes), ("medium", "GPU".into())];
        let mut expected: Vec<_> = expected.map(|(name, value)| (Value::from(name), value)).to_vec();
        expected.push(("group_idx".into(), 0.into()));
        assert_eq!(map, Value::Map(expected));
    }

    #[test]
    fn a_cleared_cache_is_a_tag_alone() {
        let array = EventFormat { encoding: EventEncoding::Array, hash_form: HashForm::Int, ..EventFormat::default() };
        assert_eq!(decode(array, KvEvent::AllBlocksCleared), Value::Array(vec!["AllBlocksCleared".into()]));
        let map = Value::Map(vec![("type".into(), "AllBlocksCleared".into())]);
        assert_eq!(decode(EventFormat::default(), KvEvent::AllBlocksCleared), map);
    }
}
