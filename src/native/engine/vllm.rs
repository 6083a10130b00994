//! vLLM's KV-event batches, MessagePack as its `ZmqEventPublisher` encodes them.
//!
//! In: one payload. Out: a [`Batch`] of typed events. Both forms are read: positional arrays (up to vLLM 0.23) and maps
//! tagged by `type` (from 0.24); for the batch as well as for its events. Fields may be missing at the end or be nil,
//! further fields and unknown keys are ignored, and unknown tags are reported one by one, so that a newer engine costs
//! what it adds and nothing else. Hashes are integers, signed or not, or bytes.
//!
//! Positions, after the tag:
//!
//! | | `BlockStored` | `BlockRemoved` |
//! |---|---|---|
//! | 1 | `block_hashes` | `block_hashes` |
//! | 2 | `parent_block_hash` | `medium` |
//! | 3 | `token_ids` | `group_idx` |
//! | 4 | `block_size` | |
//! | 5 | `lora_id` | |
//! | 6 | `medium` | |
//! | 7 | `lora_name` | |
//! | 8 | `extra_keys` | |
//! | 9 | `group_idx` | |
//! | 10 | `kv_cache_spec_kind` | |
//!
//! In maps only: `locality`, `cache_salt`, `lookahead_token_ids`.

use rmpv::Value;

use super::{Batch, BlockRemoved, BlockStored, EngineKey, EventFault, ExtraKeys, KvEvent, Place};

/// The tag of a stored event.
pub const BLOCK_STORED: &str = "BlockStored";
/// The tag of a removed event.
pub const BLOCK_REMOVED: &str = "BlockRemoved";
/// The tag of a cleared event.
pub const ALL_BLOCKS_CLEARED: &str = "AllBlocksCleared";

/// Nesting that a batch can have: batch, events, event, extra keys of a block, a pair in it; and some to spare.
const MAX_DEPTH: usize = 16;

/// A payload that is not a batch of events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MalformedBatch(pub String);

/// Reads one payload.
///
/// # Errors
/// When it is not MessagePack, or neither an array nor a map with a list of events.
pub fn decode(payload: &[u8]) -> Result<Batch, MalformedBatch> {
    let mut rest = payload;
    let value = rmpv::decode::read_value_with_max_depth(&mut rest, MAX_DEPTH)
        .map_err(|error| MalformedBatch(format!("not MessagePack: {error}")))?;
    let fields = Fields::of(&value).ok_or_else(|| MalformedBatch("neither an array nor a map".into()))?;
    let Some(Value::Array(events)) = fields.get(1, "events") else {
        return Err(MalformedBatch("`events` is not a list".into()));
    };
    let timestamp = fields.get(0, "ts").and_then(Value::as_f64);
    let data_parallel_rank = fields.get(2, "data_parallel_rank").and_then(Value::as_i64);
    Ok(Batch { timestamp, data_parallel_rank, events: events.iter().map(event).collect() })
}

fn event(value: &Value) -> Result<KvEvent, EventFault> {
    let fields = Fields::of(value).ok_or(EventFault::UnknownTag)?;
    match fields.get(0, "type").and_then(Value::as_str) {
        Some(BLOCK_STORED) => stored(&fields).map(KvEvent::BlockStored),
        Some(BLOCK_REMOVED) => removed(&fields).map(KvEvent::BlockRemoved),
        Some(ALL_BLOCKS_CLEARED) => Ok(KvEvent::AllBlocksCleared),
        _ => Err(EventFault::UnknownTag),
    }
}

fn stored(fields: &Fields) -> Result<BlockStored, EventFault> {
    let read = Reader { fields, tag: BLOCK_STORED };
    // SGLang 0.5.18 and 0.5.19 have a map with a cache salt where vLLM has the adapter's name.
    let metadata = matches!(fields.get(7, "lora_name"), Some(Value::Map(_)));
    Ok(BlockStored {
        block_hashes: read.keys(1, "block_hashes")?,
        parent_block_hash: read.optional(2, "parent_block_hash", engine_key)?,
        token_ids: read.list(3, "token_ids", |id| id.as_u64().and_then(|id| u32::try_from(id).ok()))?,
        block_size: read.optional(4, "block_size", Value::as_u64)?.unwrap_or(0),
        lora_id: read.optional(5, "lora_id", Value::as_i64)?,
        lora_name: if metadata { None } else { read.optional(7, "lora_name", text)? },
        place: Place {
            medium: read.optional(6, "medium", text)?,
            group_idx: read.optional(9, "group_idx", Value::as_u64)?,
            remote: is_remote(fields),
        },
        kv_cache_spec_kind: read.optional(10, "kv_cache_spec_kind", text)?,
        extra_keys: read.list(8, "extra_keys", |keys| Some(extra_keys(keys)))?,
        salted: metadata || fields.named("cache_salt").is_some_and(|salt| !is_empty(salt)),
        looks_ahead: fields.named("lookahead_token_ids").is_some_and(|ids| !is_empty(ids)),
    })
}

fn removed(fields: &Fields) -> Result<BlockRemoved, EventFault> {
    let read = Reader { fields, tag: BLOCK_REMOVED };
    Ok(BlockRemoved {
        block_hashes: read.keys(1, "block_hashes")?,
        place: Place {
            medium: read.optional(2, "medium", text)?,
            group_idx: read.optional(3, "group_idx", Value::as_u64)?,
            remote: is_remote(fields),
        },
    })
}

fn engine_key(value: &Value) -> Option<EngineKey> {
    match value {
        Value::Binary(bytes) => Some(EngineKey::Bytes(bytes.as_slice().into())),
        // `as_i64` also takes a small unsigned one; its bits are the same.
        Value::Integer(number) => number.as_u64().or(number.as_i64().map(i64::cast_unsigned)).map(EngineKey::Int),
        _ => None,
    }
}

fn extra_keys(value: &Value) -> ExtraKeys {
    match value {
        Value::Nil => ExtraKeys::None,
        Value::Array(keys) => match keys.as_slice() {
            [] => ExtraKeys::None,
            [key] => key.as_str().map_or(ExtraKeys::Other, |text| ExtraKeys::Text(text.to_owned())),
            _ => ExtraKeys::Other,
        },
        _ => ExtraKeys::Other,
    }
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

fn is_remote(fields: &Fields) -> bool {
    fields.named("locality").is_some_and(|locality| locality.as_str() != Some("LOCAL"))
}

/// Nil, an empty text, or lists of nothing but these.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Nil => true,
        Value::String(text) => text.as_bytes().is_empty(),
        Value::Array(values) => values.iter().all(is_empty),
        _ => false,
    }
}

/// A structure in either of its two forms.
enum Fields<'a> {
    Positional(&'a [Value]),
    Tagged(&'a [(Value, Value)]),
}

/// Reads the fields of one event, naming the one that is wrong.
struct Reader<'a> {
    fields: &'a Fields<'a>,
    tag: &'static str,
}

// === impl Fields ===

impl<'a> Fields<'a> {
    fn of(value: &'a Value) -> Option<Fields<'a>> {
        match value {
            Value::Array(values) => Some(Fields::Positional(values)),
            Value::Map(entries) => Some(Fields::Tagged(entries)),
            _ => None,
        }
    }

    /// The field's value; `None` if it is missing or nil.
    fn get(&self, position: usize, name: &str) -> Option<&'a Value> {
        match self {
            Fields::Positional(values) => values.get(position).filter(|value| !value.is_nil()),
            Fields::Tagged(_) => self.named(name),
        }
    }

    /// The value of a field that exists in maps only; `None` if it is missing or nil.
    fn named(&self, name: &str) -> Option<&'a Value> {
        let Fields::Tagged(entries) = self else { return None };
        let (_, value) = entries.iter().find(|(key, _)| key.as_str() == Some(name))?;
        Some(value).filter(|value| !value.is_nil())
    }
}

// === impl Reader ===

impl Reader<'_> {
    fn optional<T>(
        &self,
        position: usize,
        name: &'static str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<T>, EventFault> {
        match self.fields.get(position, name) {
            None => Ok(None),
            Some(value) => read(value).map(Some).ok_or(EventFault::Malformed { tag: self.tag, field: name }),
        }
    }

    /// A list; a missing one is empty.
    fn list<T>(
        &self,
        position: usize,
        name: &'static str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<Vec<T>, EventFault> {
        let items = self.optional(position, name, |value| value.as_array()?.iter().map(&read).collect())?;
        Ok(items.unwrap_or_default())
    }

    /// The keys, without which an event says nothing.
    fn keys(&self, position: usize, name: &'static str) -> Result<Vec<EngineKey>, EventFault> {
        self.fields.get(position, name).ok_or(EventFault::Malformed { tag: self.tag, field: name })?;
        self.list(position, name, engine_key)
    }
}

impl std::fmt::Display for MalformedBatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "not a batch of KV events: {}", self.0)
    }
}

impl std::error::Error for MalformedBatch {}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(value: &Value) -> Vec<u8> {
        let mut bytes = Vec::new();
        rmpv::encode::write_value(&mut bytes, value).unwrap();
        bytes
    }

    fn array(values: Vec<Value>) -> Value {
        Value::Array(values)
    }

    fn map(entries: Vec<(&str, Value)>) -> Value {
        Value::Map(entries.into_iter().map(|(key, value)| (key.into(), value)).collect())
    }

    fn ints(values: impl IntoIterator<Item = u64>) -> Value {
        array(values.into_iter().map(Value::from).collect())
    }

    fn only_event(batch: &Value) -> Result<KvEvent, EventFault> {
        let mut events = decode(&encoded(batch)).unwrap().events;
        assert_eq!(events.len(), 1);
        events.remove(0)
    }

    fn expected() -> BlockStored {
        BlockStored {
            block_hashes: vec![EngineKey::Int(7), EngineKey::Int(8)],
            parent_block_hash: Some(EngineKey::Int(6)),
            token_ids: vec![1, 2, 3, 4],
            block_size: 2,
            ..BlockStored::default()
        }
    }

    #[test]
    fn every_array_length_from_vllm_0_9_on_is_read() {
        let full = vec![
            Value::from(BLOCK_STORED),
            ints([7, 8]),
            Value::from(6),
            ints([1, 2, 3, 4]),
            Value::from(2),
            Value::Nil,
            Value::from("GPU"),
            Value::Nil,
            array(vec![Value::Nil, Value::Nil]),
            Value::from(0),
            Value::from("full_attention"),
            Value::Nil,
            Value::from("a field of the future"),
        ];
        for length in 6..=full.len() {
            let batch = array(vec![1.5.into(), array(vec![array(full[..length].to_vec())])]);
            let Ok(KvEvent::BlockStored(event)) = only_event(&batch) else { panic!("length {length}") };
            assert_eq!(event.block_hashes, expected().block_hashes);
            assert_eq!(event.place.medium.is_some(), length > 6);
            assert_eq!(event.extra_keys.len(), if length > 8 { 2 } else { 0 });
            assert_eq!(event.place.group_idx, (length > 9).then_some(0));
        }
    }

    #[test]
    fn a_map_says_the_same_as_an_array() {
        let event = map(vec![
            ("type", BLOCK_STORED.into()),
            ("session_id", "ignored".into()),
            ("block_size", 2.into()),
            ("token_ids", ints([1, 2, 3, 4])),
            ("parent_block_hash", 6.into()),
            ("block_hashes", ints([7, 8])),
        ]);
        let batch = map(vec![("events", array(vec![event])), ("ts", 2.5.into())]);
        assert_eq!(only_event(&batch), Ok(KvEvent::BlockStored(expected())));
        assert_eq!(decode(&encoded(&batch)).unwrap().timestamp, Some(2.5));
    }

    #[test]
    fn hashes_are_signed_unsigned_or_bytes() {
        let hashes = array(vec![(-1_i64).into(), u64::MAX.into(), Value::Binary(vec![9; 32])]);
        let batch = array(vec![0.into(), array(vec![array(vec![BLOCK_REMOVED.into(), hashes])])]);
        let Ok(KvEvent::BlockRemoved(event)) = only_event(&batch) else { panic!() };
        let bytes = EngineKey::Bytes(vec![9; 32].into());
        assert_eq!(event.block_hashes, [EngineKey::Int(u64::MAX), EngineKey::Int(u64::MAX), bytes]);
    }

    #[test]
    fn what_a_key_depends_on_is_told_apart() {
        let keys = array(vec![
            Value::Nil,
            array(vec!["lora-a".into()]),
            array(vec![array(vec!["image".into(), 3.into()])]),
            array(vec!["lora-a".into(), "salt".into()]),
        ]);
        let event = map(vec![
            ("type", BLOCK_STORED.into()),
            ("block_hashes", ints([1])),
            ("extra_keys", keys),
            ("cache_salt", "s".into()),
            ("lookahead_token_ids", array(vec![array(vec![])])),
            ("locality", "REMOTE".into()),
        ]);
        let Ok(KvEvent::BlockStored(event)) = only_event(&array(vec![0.into(), array(vec![event])])) else { panic!() };
        let lora = ExtraKeys::Text("lora-a".into());
        assert_eq!(event.extra_keys, [ExtraKeys::None, lora, ExtraKeys::Other, ExtraKeys::Other]);
        assert!(event.salted && event.place.remote && !event.looks_ahead);
    }

    #[test]
    fn one_unreadable_event_does_not_cost_the_others() {
        let bigrams = array(vec![array(vec![1.into(), 2.into()])]);
        let events = array(vec![
            array(vec!["BlockMoved".into(), 1.into()]),
            array(vec![BLOCK_STORED.into(), ints([1]), Value::Nil, bigrams, 1.into()]),
            array(vec![BLOCK_REMOVED.into()]),
            5.into(),
            array(vec![ALL_BLOCKS_CLEARED.into()]),
        ]);
        let batch = decode(&encoded(&array(vec![0.into(), events, 3.into()]))).unwrap();
        let token_ids = EventFault::Malformed { tag: BLOCK_STORED, field: "token_ids" };
        let block_hashes = EventFault::Malformed { tag: BLOCK_REMOVED, field: "block_hashes" };
        assert!(block_hashes.may_hide_a_removal() && !token_ids.may_hide_a_removal());
        let unknown = Err(EventFault::UnknownTag);
        let expected = [unknown.clone(), Err(token_ids), Err(block_hashes), unknown, Ok(KvEvent::AllBlocksCleared)];
        assert_eq!(batch.events, expected);
    }

    #[test]
    fn garbage_is_refused() {
        for payload in [&b""[..], b"\xc1", b"\x93\x01", b"hello", &[0x91; 64], &[0xdd, 0xff, 0xff, 0xff, 0xff]] {
            assert!(decode(payload).is_err(), "{payload:?}");
        }
    }
}
