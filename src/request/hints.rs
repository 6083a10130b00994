//! The body's `inference_cache` object: the contract's LookupRoute fields by their names, hashes in hex.
//!
//! `prefix_hash` is hex, `block_hashes` a list of hex texts or one text with all of them, counts and `block_size` are
//! whole numbers. A key or count that is anything else is `malformed_chain`, other fields are `wrong_type`. Fields of
//! other names are passed over: the contract may grow.

use super::explicit::{self, Explicit, Hashes, MALFORMED};
use super::fields::TextField;
use super::inputs::ScopeParts;
use super::json::{Kind, Malformed, Reader};
use super::tokens::Prompt;
use crate::fingerprint::BlockSize;
use crate::routing::reason::Detail;

/// What the object says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Hints {
    /// Explicit keys.
    pub explicit: Given<Explicit>,
    /// `token_ids`.
    pub token_ids: Prompt,
    /// `prompt_text`: the message of a user.
    pub prompt_text: Prompt,
    /// `hash_scheme` and `adapter_id`.
    pub scope: Given<ScopeParts>,
}

/// A value that may be absent, or the fault found in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Given<T>(pub Result<Option<T>, Detail>);

/// The object's fields as they are read.
#[derive(Default)]
struct Fields {
    prefix_hash: Given<Vec<u8>>,
    prefix_token_count: Given<u32>,
    block_hashes: Given<Hashes>,
    block_token_counts: Given<Vec<u32>>,
    block_size: Given<BlockSize>,
    token_ids: Prompt,
    prompt_text: Prompt,
    hash_scheme: TextField,
    adapter_id: TextField,
}

// === impl Hints ===

impl Hints {
    /// Reads the value of `inference_cache`.
    pub(super) fn read(reader: &mut Reader) -> Result<Hints, Malformed> {
        match reader.kind()? {
            Kind::Null => reader.skip_value().map(|()| Hints::default()),
            Kind::Object => {
                let mut fields = Fields::default();
                reader.object(|key, reader| fields.read_field(key, reader))?;
                Ok(fields.into_hints())
            }
            _ => {
                reader.skip_value()?;
                Ok(Hints { explicit: Given(Err(Detail::WrongType)), ..Hints::default() })
            }
        }
    }
}

// === impl Given ===

impl<T> Default for Given<T> {
    fn default() -> Given<T> {
        Given(Ok(None))
    }
}

// === impl Fields ===

impl Fields {
    fn read_field(&mut self, key: &str, reader: &mut Reader) -> Result<(), Malformed> {
        match key {
            "prefix_hash" => self.prefix_hash = read_prefix_hash(reader)?,
            "prefix_token_count" => self.prefix_token_count = read_number(reader, explicit::count)?,
            "block_hashes" => self.block_hashes = read_hashes(reader)?,
            "block_token_counts" => self.block_token_counts = read_counts(reader)?,
            "block_size" => self.block_size = read_number(reader, explicit::block_size)?,
            "token_ids" => self.token_ids = Prompt::read_tokens_nullable(reader)?,
            "prompt_text" => self.prompt_text = Prompt::read_text_nullable(reader)?,
            "hash_scheme" => self.hash_scheme = TextField::read(reader)?,
            "adapter_id" => self.adapter_id = TextField::read(reader)?,
            _ => reader.skip_value()?,
        }
        Ok(())
    }

    fn into_hints(self) -> Hints {
        let (hash_scheme, adapter_id) = (self.hash_scheme, self.adapter_id);
        let scope = || {
            let parts = ScopeParts { hash_scheme: hash_scheme.into_option()?, adapter_id: adapter_id.into_option()? };
            Ok(Some(parts))
        };
        let explicit = || {
            let explicit = Explicit {
                prefix_hash: self.prefix_hash.0?,
                prefix_token_count: self.prefix_token_count.0?,
                block_hashes: self.block_hashes.0?,
                block_token_counts: self.block_token_counts.0?,
                block_size: self.block_size.0?,
            };
            Ok(explicit.if_present())
        };
        let (token_ids, prompt_text) = (self.token_ids, self.prompt_text);
        Hints { explicit: Given(explicit()), token_ids, prompt_text, scope: Given(scope()) }
    }
}

/// Passes over a value that should have been something else: null is absent, the rest is a fault.
fn other<T>(reader: &mut Reader) -> Result<Given<T>, Malformed> {
    let is_null = reader.kind()? == Kind::Null;
    reader.skip_value()?;
    Ok(Given(if is_null { Ok(None) } else { Err(MALFORMED) }))
}

fn read_prefix_hash(reader: &mut Reader) -> Result<Given<Vec<u8>>, Malformed> {
    if reader.kind()? != Kind::Text {
        return other(reader);
    }
    let digits = reader.text()?;
    Ok(Given(if digits.is_empty() { Ok(None) } else { explicit::hex(&digits).map(Some) }))
}

fn read_number<T>(reader: &mut Reader, check: impl FnOnce(u64) -> Result<T, Detail>) -> Result<Given<T>, Malformed> {
    if reader.kind()? != Kind::Number {
        return other(reader);
    }
    let number = reader.whole_number()?.ok_or(MALFORMED);
    Ok(Given(number.and_then(check).map(Some)))
}

fn read_hashes(reader: &mut Reader) -> Result<Given<Hashes>, Malformed> {
    match reader.kind()? {
        Kind::Text => {
            let digits = reader.text()?;
            Ok(Given(if digits.is_empty() { Ok(None) } else { Hashes::concatenated(&digits).map(Some) }))
        }
        Kind::Array => {
            let mut hashes = Hashes::default();
            let pushed = read_list(reader, |reader| {
                if reader.kind()? != Kind::Text {
                    return reader.skip_value().map(|()| Err(MALFORMED));
                }
                Ok(hashes.push(&reader.text()?))
            })?;
            Ok(Given(pushed.map(|items| (items > 0).then_some(hashes))))
        }
        _ => other(reader),
    }
}

fn read_counts(reader: &mut Reader) -> Result<Given<Vec<u32>>, Malformed> {
    if reader.kind()? != Kind::Array {
        return other(reader);
    }
    let mut counts = Vec::new();
    let pushed = read_list(reader, |reader| {
        let Given(count) = read_number(reader, explicit::count)?;
        Ok(count.and_then(|count| count.ok_or(MALFORMED)).map(|count| counts.push(count)))
    })?;
    Ok(Given(pushed.map(|items| (items > 0).then_some(counts))))
}

/// Reads an array item by item. The number of items, or the first item's fault; the array is read to its end either way.
fn read_list(
    reader: &mut Reader,
    mut item: impl FnMut(&mut Reader) -> Result<Result<(), Detail>, Malformed>,
) -> Result<Result<usize, Detail>, Malformed> {
    let mut items = 0_usize;
    let mut more = reader.enter_array()?;
    while more {
        if let Err(fault) = item(reader)? {
            reader.skip_rest_of_array()?;
            return Ok(Err(fault));
        }
        items = items.saturating_add(1);
        more = reader.next_in_array()?;
    }
    Ok(Ok(items))
}
