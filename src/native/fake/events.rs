//! KV events as engines put them on the wire.
//!
//! In: [`KvEvent`]s of one scheduler step. Out: one msgpack payload `[ts, events, rank]`. [`EventEncoding`] has the
//! releases whose layouts are written; the layouts themselves are in `native/engine/README.md`. Numbers take the shortest
//! msgpack form and the time is a float64, as the engines' encoder does. Where an engine does not say of a block what its
//! key depends on, nor does this.

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
        /// The salt of the request that did.
        salt: Option<Arc<str>>,
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
    /// As in vLLM 0.9.2: arrays without a medium, an adapter by its number alone.
    #[value(name = "vllm-0.9")]
    Vllm09,
    /// As in SGLang 0.4.8: arrays, a block at a time, under keys that stand for a block without its prefix.
    #[value(name = "sglang-0.4")]
    Sglang04,
    /// As in SGLang 0.5.5: the same, and blocks deep in a prompt without a parent.
    #[value(name = "sglang-0.5.5")]
    Sglang055,
    /// As in SGLang 0.5.9: arrays with a medium, defaults left out.
    #[value(name = "sglang-0.5.9")]
    Sglang059,
    /// As in SGLang 0.5.18: arrays with nothing left out, and a map after those of salted blocks.
    #[value(name = "sglang-0.5.18")]
    Sglang0518,
    /// As in SGLang 0.5.22: tagged maps.
    #[value(name = "sglang-0.5.22")]
    Sglang0522,
    /// Tagged maps, as in TensorRT-LLM 1.3; an adapter by its number alone.
    #[value(name = "tensorrt-llm")]
    TensorrtLlm,
}

/// The form of published keys, in vLLM's layouts that know both.
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
    /// The layout.
    pub encoding: EventEncoding,
    /// Integers or bytes.
    pub hash_form: HashForm,
    /// The rank that each batch states.
    pub data_parallel_rank: u16,
    /// Another layout from some batch on.
    pub switch: Option<Switch>,
}

/// From the batch with this number on, another layout, as after an upgrade that nobody was told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switch {
    /// The number.
    pub sequence: u64,
    /// The layout.
    pub encoding: EventEncoding,
}

/// One event's fields, in their order.
type Fields = Vec<(&'static str, Value)>;

// === impl EventEncoding ===

impl EventEncoding {
    /// Every layout.
    pub const ALL: [EventEncoding; 9] = [
        EventEncoding::Array,
        EventEncoding::Map,
        EventEncoding::Vllm09,
        EventEncoding::Sglang04,
        EventEncoding::Sglang055,
        EventEncoding::Sglang059,
        EventEncoding::Sglang0518,
        EventEncoding::Sglang0522,
        EventEncoding::TensorrtLlm,
    ];

    /// Whether answers to a replay request have the topic.
    pub fn replays_with_topic(self) -> bool {
        matches!(self, EventEncoding::Map | EventEncoding::Sglang0522 | EventEncoding::TensorrtLlm)
    }

    /// Whether the engine says at its start that its cache is empty.
    pub fn announces_an_empty_cache(self) -> bool {
        self.is_sglang()
    }

    fn is_tagged(self) -> bool {
        self.replays_with_topic()
    }

    fn is_sglang(self) -> bool {
        use EventEncoding::{Sglang04, Sglang055, Sglang059, Sglang0518, Sglang0522};
        matches!(self, Sglang04 | Sglang055 | Sglang059 | Sglang0518 | Sglang0522)
    }

    /// Whether keys stand for a block without its prefix.
    fn is_unchained(self) -> bool {
        matches!(self, EventEncoding::Sglang04 | EventEncoding::Sglang055)
    }

    fn has_medium(self) -> bool {
        !self.is_unchained() && self != EventEncoding::Vllm09
    }
}

// === impl EventFormat ===

impl EventFormat {
    /// How the batch with this number is written.
    pub fn at(self, sequence: u64) -> EventFormat {
        match self.switch {
            Some(switch) if sequence >= switch.sequence => EventFormat { encoding: switch.encoding, ..self },
            _ => self,
        }
    }

    /// The payload of a batch published at `ts`, Unix time in seconds.
    ///
    /// # Errors
    /// When msgpack cannot hold it: a batch of more than 4 G items.
    pub fn encode_batch(self, ts: f64, events: &[KvEvent]) -> Result<Vec<u8>, rmpv::encode::Error> {
        let events = events.iter().flat_map(|event| self.events(event)).collect();
        let batch = Value::Array(vec![Value::F64(ts), Value::Array(events), Value::from(self.data_parallel_rank)]);
        let mut payload = Vec::new();
        rmpv::encode::write_value(&mut payload, &batch)?;
        Ok(payload)
    }

    fn events(self, event: &KvEvent) -> Vec<Value> {
        match event {
            KvEvent::BlockStored { keys, parent, token_ids, block_size, lora, salt }
                if self.encoding.is_unchained() =>
            {
                let mut parent = *parent;
                let blocks = keys.iter().zip(token_ids.chunks(*block_size)).enumerate();
                let one_by_one = blocks.map(|(at, (key, block))| {
                    let before = parent.replace(*key);
                    let stated = if at == 0 && self.encoding == EventEncoding::Sglang055 {
                        Value::Nil
                    } else {
                        // The root has the hash of no tokens.
                        before.unwrap_or_else(EngineKey::random_root).page_hash().into()
                    };
                    let fields =
                        self.stored_fields(&[*key], stated, block, *block_size, lora.as_deref(), salt.as_deref());
                    self.shaped("BlockStored", fields)
                });
                one_by_one.collect()
            }
            KvEvent::BlockStored { keys, parent, token_ids, block_size, lora, salt } => {
                // The salt is of a prompt's first block, so that others have none to tell.
                let salt = if parent.is_none() || self.encoding.is_sglang() { salt.as_deref() } else { None };
                let stated = parent.map_or(Value::Nil, |key| self.key(key));
                let fields = self.stored_fields(keys, stated, token_ids, *block_size, lora.as_deref(), salt);
                vec![self.shaped("BlockStored", fields)]
            }
            KvEvent::BlockRemoved { key } => vec![self.shaped("BlockRemoved", self.removed_fields(*key))],
            KvEvent::AllBlocksCleared => vec![self.shaped("AllBlocksCleared", Vec::new())],
        }
    }

    fn shaped(self, tag: &'static str, fields: Fields) -> Value {
        if self.encoding.is_tagged() {
            let entries = fields.into_iter().map(|(name, value)| (Value::from(name), value));
            Value::Map(std::iter::once((Value::from("type"), Value::from(tag))).chain(entries).collect())
        } else {
            let values = fields.into_iter().map(|(_, value)| value);
            Value::Array(std::iter::once(Value::from(tag)).chain(values).collect())
        }
    }

    fn stored_fields(
        self,
        keys: &[EngineKey],
        parent: Value,
        token_ids: &[u32],
        block_size: usize,
        lora: Option<&str>,
        salt: Option<&str>,
    ) -> Fields {
        // SGLang does not number its adapters.
        let lora_id = lora.filter(|_| !self.encoding.is_sglang()).map_or(Value::Nil, |_| LORA_ID.into());
        let mut fields = vec![
            ("block_hashes", self.keys(keys)),
            ("parent_block_hash", parent),
            ("token_ids", token_ids.iter().map(|id| Value::from(*id)).collect::<Vec<_>>().into()),
            ("block_size", Value::from(block_size)),
            ("lora_id", lora_id),
        ];
        if self.encoding.has_medium() {
            fields.push(("medium", Value::from(MEDIUM)));
        }
        let text = |text: Option<&str>| text.map_or(Value::Nil, Value::from);
        match self.encoding {
            EventEncoding::Array | EventEncoding::Map => {
                fields.push(("lora_name", text(lora)));
                fields.push(("extra_keys", extra_keys(keys.len(), lora, salt)));
                fields.push(("group_idx", Value::from(GROUP)));
                fields.push(("kv_cache_spec_kind", Value::from(GROUP_KIND)));
            }
            EventEncoding::Sglang0518 => fields.extend(salt.map(|salt| ("metadata", metadata(salt)))),
            EventEncoding::Sglang0522 => {
                fields.extend(salt.map(|salt| ("cache_salt", Value::from(salt))));
                fields.extend(lora.map(|lora| ("lora_name", Value::from(lora))));
            }
            EventEncoding::TensorrtLlm => fields.push(("lora_name", Value::Nil)),
            EventEncoding::Vllm09 | EventEncoding::Sglang04 | EventEncoding::Sglang055 | EventEncoding::Sglang059 => {}
        }
        fields
    }

    fn removed_fields(self, key: EngineKey) -> Fields {
        let mut fields = vec![("block_hashes", self.keys(&[key]))];
        if self.encoding.has_medium() {
            fields.push(("medium", Value::from(MEDIUM)));
        }
        if matches!(self.encoding, EventEncoding::Array | EventEncoding::Map) {
            fields.push(("group_idx", Value::from(GROUP)));
        }
        fields
    }

    fn keys(self, keys: &[EngineKey]) -> Value {
        Value::Array(keys.iter().map(|key| self.key(*key)).collect())
    }

    fn key(self, key: EngineKey) -> Value {
        match self.encoding {
            EventEncoding::Array | EventEncoding::Map if self.hash_form == HashForm::Bytes => {
                Value::from(key.to_bytes().as_slice())
            }
            EventEncoding::Array | EventEncoding::Map | EventEncoding::TensorrtLlm => Value::from(key.low_64()),
            encoding if encoding.is_unchained() => Value::from(key.page_hash()),
            _ => Value::from(key.high_64()),
        }
    }
}

/// One entry per block even where a block has none; an adapter's name is part of each of its blocks' keys, a salt of the
/// first one's.
fn extra_keys(blocks: usize, lora: Option<&str>, salt: Option<&str>) -> Value {
    let of_block = |at: usize| {
        let keys: Vec<Value> = lora.into_iter().chain(salt.filter(|_| at == 0)).map(Value::from).collect();
        if keys.is_empty() { Value::Nil } else { Value::Array(keys) }
    };
    Value::Array((0..blocks).map(of_block).collect())
}

fn metadata(salt: &str) -> Value {
    Value::Map(vec![("cache_salt".into(), salt.into())])
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

    use crate::native::engine::{self as read, Dialect, EngineKey as ReadKey};
    use crate::native::hub::config::EngineKind;

    fn run(lora: Option<&str>, salt: Option<&str>) -> KvEvent {
        let first = EngineKey::random_root().child(&[1, 2]);
        KvEvent::BlockStored {
            keys: vec![first, first.child(&[3, 4])],
            parent: None,
            token_ids: vec![1, 2, 3, 4],
            block_size: 2,
            lora: lora.map(Arc::from),
            salt: salt.map(Arc::from),
        }
    }

    fn read(format: EventFormat, events: &[KvEvent]) -> Vec<read::KvEvent> {
        let payload = format.encode_batch(1.5, events).unwrap();
        let engine = match format.encoding {
            encoding if encoding.is_sglang() => EngineKind::Sglang,
            EventEncoding::TensorrtLlm => EngineKind::TensorrtLlm,
            _ => EngineKind::Vllm,
        };
        let [told, stated] = [EngineKind::Auto, engine].map(|engine| {
            let batch = read::decode(&payload, &Dialect::of(engine)).unwrap();
            assert!(batch.faults.is_empty() && (batch.timestamp, batch.data_parallel_rank) == (Some(1.5), Some(0)));
            batch.events
        });
        assert_eq!(told, stated, "{:?}", format.encoding);
        told
    }

    #[test]
    fn every_layout_is_read_as_what_was_written() {
        for (encoding, hash_form) in EventEncoding::ALL
            .map(|encoding| (encoding, HashForm::Int))
            .into_iter()
            .chain([EventEncoding::Array, EventEncoding::Map].map(|encoding| (encoding, HashForm::Bytes)))
        {
            let format = EventFormat { encoding, hash_form, ..EventFormat::default() };
            let event = run(None, None);
            let KvEvent::BlockStored { keys, .. } = &event else { panic!() };
            let key = |key: &EngineKey| match (format.encoding, hash_form) {
                (encoding, _) if encoding.is_unchained() => ReadKey::Int(key.page_hash().cast_unsigned()),
                (_, HashForm::Bytes) => ReadKey::Bytes(key.to_bytes().into()),
                (EventEncoding::Array | EventEncoding::Map | EventEncoding::TensorrtLlm, _) => {
                    ReadKey::Int(key.low_64())
                }
                _ => ReadKey::Int(key.high_64().cast_unsigned()),
            };
            let removed = KvEvent::BlockRemoved { key: keys[1] };
            let mut events = read(format, &[event.clone(), removed, KvEvent::AllBlocksCleared]);
            assert_eq!(events.pop(), Some(read::KvEvent::AllBlocksCleared));
            let Some(read::KvEvent::BlockRemoved(removed)) = events.pop() else { panic!("{format:?}") };
            assert_eq!(removed.block_hashes, [key(&keys[1])]);
            let (mut read_keys, mut tokens) = (Vec::new(), Vec::new());
            for event in events {
                let read::KvEvent::BlockStored(event) = event else { panic!("{format:?}") };
                assert_eq!((event.block_size, event.lora_id, event.salted), (2, None, false));
                assert_eq!(event.place.medium.is_some(), encoding.has_medium());
                read_keys.extend(event.block_hashes);
                tokens.extend(event.token_ids);
            }
            assert_eq!((read_keys, tokens), (keys.iter().map(key).collect(), vec![1, 2, 3, 4]), "{format:?}");
        }
    }

    #[test]
    fn adapters_and_salts_are_told_where_the_engine_tells_them() {
        use EventEncoding::{Array, Map, Sglang0518, Sglang0522, TensorrtLlm, Vllm09};
        let only = |encoding, lora, salt| {
            let format = EventFormat { encoding, ..EventFormat::default() };
            match read(format, &[run(lora, salt)]).remove(0) {
                read::KvEvent::BlockStored(event) => event,
                other => panic!("{other:?}"),
            }
        };
        for encoding in [Array, Map, Sglang0522] {
            assert_eq!(only(encoding, Some("a"), None).lora_name.as_deref(), Some("a"), "{encoding:?}");
        }
        for encoding in [Vllm09, TensorrtLlm] {
            let event = only(encoding, Some("a"), None);
            assert_eq!((event.lora_name, event.lora_id), (None, Some(1)), "{encoding:?}");
        }
        for encoding in [Sglang0518, Sglang0522] {
            assert!(only(encoding, None, Some("s")).salted && !only(encoding, None, None).salted, "{encoding:?}");
        }
        for encoding in [Array, Map] {
            let keys = [read::ExtraKeys::Text("s".into()), read::ExtraKeys::None];
            assert_eq!(only(encoding, None, Some("s")).extra_keys, keys, "{encoding:?}");
        }
    }

    #[test]
    fn the_layout_changes_at_the_batch_it_is_to_change_at() {
        let switch = Some(Switch { sequence: 3, encoding: EventEncoding::Sglang0522 });
        let format = EventFormat { switch, ..EventFormat::default() };
        assert_eq!(
            [2, 3, 4].map(|at| format.at(at).encoding),
            [EventEncoding::Map, EventEncoding::Sglang0522, EventEncoding::Sglang0522]
        );
    }
}
