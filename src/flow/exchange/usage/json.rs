//! One JSON text, read in pieces, of which only the counts of a usage object are taken.
//!
//! A count is taken where an engine puts it and nowhere else: by the keys on the way from the root, through objects alone.
//! What a model writes is inside a string, or inside an array (`choices`, `content`, `output`), so that nothing in it is
//! ever on that way. A key counts as written: none of those looked for needs an escape, and one that has any is another.
//!
//! | Way | Who |
//! |---|---|
//! | `usage.prompt_tokens`, `usage.prompt_tokens_details.cached_tokens` | OpenAI's completions, chat and embeddings |
//! | `usage.input_tokens`, `usage.input_tokens_details.cached_tokens` | OpenAI's responses; in events below `response` |
//! | `usage.input_tokens`, `usage.cache_read_input_tokens`, `usage.cache_creation_input_tokens` | Anthropic's messages; in `message_start` below `message` |
//! | `meta_info.prompt_tokens`, `meta_info.cached_tokens` | SGLang's `/generate` |
//!
//! Nothing is kept but a key of a few bytes, a number, and where it is. Text that is no JSON makes it find nothing, or what
//! is on the way before the fault.

use memchr::memchr2;

use super::Usage;

/// The longest key looked for, in bytes.
const KEY_BYTES: usize = 27;
/// How far a string's end is looked for byte by byte.
const NEAR_BYTES: usize = 16;
/// How deep the deepest object looked into is.
const DEPTH: usize = 4;

/// A reader of one text.
#[derive(Clone, Debug, Default)]
pub(super) struct Reader {
    mode: Mode,
    /// Objects and arrays that are open.
    depth: u32,
    /// What they are, the outermost first.
    open: [Place; DEPTH],
    /// The string read last in an object that is looked into.
    key: Key,
    /// What the value that follows is.
    next: Next,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Mode {
    /// Between strings and numbers.
    #[default]
    Between,
    /// Within a string.
    Text,
    /// Within a string, after a backslash.
    Escaped,
    /// Within a count, which is none if it is not a whole number.
    Count(Count, Option<u64>),
    /// After the end.
    Ended,
}

/// An object or array.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    /// One that has nothing.
    #[default]
    Other,
    /// The outermost object.
    Root,
    /// An event's `response` or `message`.
    Whole,
    /// A `usage`.
    Usage,
    /// Its `…_tokens_details`.
    Details,
    /// A `meta_info`.
    MetaInfo,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Next {
    #[default]
    Other,
    Object(Place),
    Count(Count),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Count {
    Prompt,
    Cached,
    CacheRead,
    CacheCreation,
}

/// A string, as far as it may be a key that is looked for.
#[derive(Clone, Copy, Debug, Default)]
struct Key {
    bytes: [u8; KEY_BYTES],
    /// More than there is room for if it is longer, or has an escape.
    length: usize,
}

// === impl Reader ===

impl Reader {
    /// Reads on.
    pub(super) fn read(&mut self, mut rest: &[u8], usage: &mut Usage) {
        while let Some((&byte, after)) = rest.split_first() {
            rest = match self.mode {
                Mode::Ended => return,
                Mode::Count(count, value) => match on_count(value, byte) {
                    Some(value) => {
                        self.mode = Mode::Count(count, value);
                        after
                    }
                    None => {
                        self.mode = Mode::Between;
                        count.set(value, usage);
                        rest
                    }
                },
                _ if self.depth > 0 && self.place() == Place::Other => self.pass_over(rest),
                Mode::Between => {
                    self.between(byte);
                    after
                }
                Mode::Text => self.text(rest),
                Mode::Escaped => {
                    self.mode = Mode::Text;
                    after
                }
            };
        }
    }

    /// The innermost object or array that is open.
    fn place(&self) -> Place {
        let at = (self.depth as usize).checked_sub(1);
        at.and_then(|at| self.open.get(at)).copied().unwrap_or_default()
    }

    /// On to the end of what is open and has nothing, with all that is in it.
    fn pass_over<'a>(&mut self, rest: &'a [u8]) -> &'a [u8] {
        let around = self.open.iter().take_while(|place| **place != Place::Other).count();
        // A piece may end deeper, where other objects were before.
        self.open.iter_mut().skip(around).for_each(|place| *place = Place::Other);
        let Reader { mut mode, mut depth, .. } = *self;
        let mut bytes = rest.iter();
        loop {
            mode = match mode {
                Mode::Text => match text_end(bytes.as_slice()).and_then(|end| bytes.nth(end)) {
                    Some(b'"') => Mode::Between,
                    Some(_) => Mode::Escaped,
                    None => {
                        bytes = [].iter();
                        break;
                    }
                },
                Mode::Escaped if bytes.next().is_some() => Mode::Text,
                Mode::Escaped => break,
                _ => match bytes.find(|byte| stands_out(**byte)) {
                    Some(b'"') => Mode::Text,
                    Some(b'{' | b'[') => {
                        depth = depth.saturating_add(1);
                        mode
                    }
                    Some(b'}' | b']') => {
                        depth = depth.saturating_sub(1);
                        if depth as usize <= around {
                            break;
                        }
                        mode
                    }
                    Some(_) => mode,
                    None => break,
                },
            };
        }
        (self.mode, self.depth) = (mode, depth);
        if depth == 0 {
            self.mode = Mode::Ended;
        }
        bytes.as_slice()
    }

    /// On to the end of a string, or to an escape in it.
    fn text<'a>(&mut self, rest: &'a [u8]) -> &'a [u8] {
        let (text, after) = rest.split_at_checked(text_end(rest).unwrap_or(rest.len())).unwrap_or((rest, &[]));
        self.key.push(text);
        match after.split_first() {
            Some((b'"', after)) => {
                self.mode = Mode::Between;
                after
            }
            Some((_, after)) => {
                self.mode = Mode::Escaped;
                self.key.spoil();
                after
            }
            None => &[],
        }
    }

    fn between(&mut self, byte: u8) {
        match byte {
            b'"' => {
                self.mode = Mode::Text;
                self.next = Next::Other;
                self.key.length = 0;
            }
            b':' => self.next = self.place().at(self.key.as_bytes()),
            b',' => self.next = Next::Other,
            b'{' => self.enter(match self.next {
                _ if self.depth == 0 => Place::Root,
                Next::Object(place) => place,
                _ => Place::Other,
            }),
            b'[' => self.enter(Place::Other),
            b'}' | b']' => {
                self.next = Next::Other;
                self.depth = self.depth.saturating_sub(1);
                if self.depth == 0 {
                    self.mode = Mode::Ended;
                }
            }
            b'0'..=b'9' => {
                if let Next::Count(count) = self.next {
                    self.mode = Mode::Count(count, Some(u64::from(byte - b'0')));
                }
            }
            b' ' | b'\t' | b'\r' | b'\n' => {}
            // A minus, true, false, null.
            _ => self.next = Next::Other,
        }
    }

    fn enter(&mut self, place: Place) {
        if let Some(open) = self.open.get_mut(self.depth as usize) {
            *open = place;
        }
        self.depth = self.depth.saturating_add(1);
        self.next = Next::Other;
    }
}

/// Whether a byte between strings and numbers is a quote or a bracket. A few others are taken for one, none of which is
/// in any JSON there.
fn stands_out(byte: u8) -> bool {
    byte == b'"' || byte | 0x26 == 0x7F
}

/// The first quote or backslash. Most strings are short: looking for long ones takes longer to begin.
fn text_end(rest: &[u8]) -> Option<usize> {
    let (near, far) = rest.split_at_checked(NEAR_BYTES).unwrap_or((rest, &[]));
    let ends = |byte: &u8| matches!(byte, b'"' | b'\\');
    near.iter().position(ends).or_else(|| memchr2(b'"', b'\\', far).map(|at| at + near.len()))
}

/// What a count is with one more byte; none if the byte is not part of the number.
fn on_count(value: Option<u64>, byte: u8) -> Option<Option<u64>> {
    match byte {
        b'0'..=b'9' => {
            let digit = u64::from(byte - b'0');
            Some(value.and_then(|value| value.checked_mul(10)?.checked_add(digit)))
        }
        b'.' | b'e' | b'E' | b'+' | b'-' => Some(None),
        _ => None,
    }
}

// === impl Place ===

impl Place {
    /// What a key's value is.
    fn at(self, key: &[u8]) -> Next {
        match (self, key) {
            (Place::Root | Place::Whole, b"usage") => Next::Object(Place::Usage),
            (Place::Root, b"response" | b"message") => Next::Object(Place::Whole),
            (Place::Root, b"meta_info") => Next::Object(Place::MetaInfo),
            (Place::Usage, b"prompt_tokens_details" | b"input_tokens_details") => Next::Object(Place::Details),
            (Place::Usage, b"prompt_tokens" | b"input_tokens") | (Place::MetaInfo, b"prompt_tokens") => {
                Next::Count(Count::Prompt)
            }
            (Place::Details | Place::MetaInfo, b"cached_tokens") => Next::Count(Count::Cached),
            (Place::Usage, b"cache_read_input_tokens") => Next::Count(Count::CacheRead),
            (Place::Usage, b"cache_creation_input_tokens") => Next::Count(Count::CacheCreation),
            _ => Next::Other,
        }
    }
}

// === impl Count ===

impl Count {
    fn set(self, value: Option<u64>, usage: &mut Usage) {
        let count = match self {
            Count::Prompt => &mut usage.prompt_tokens,
            Count::Cached => &mut usage.cached_tokens,
            Count::CacheRead => &mut usage.cache_read_tokens,
            Count::CacheCreation => &mut usage.cache_creation_tokens,
        };
        *count = value.or(*count);
    }
}

// === impl Key ===

impl Key {
    fn spoil(&mut self) {
        self.length = usize::MAX;
    }

    fn push(&mut self, text: &[u8]) {
        let end = self.length.saturating_add(text.len());
        if let Some(room) = self.bytes.get_mut(self.length..end) {
            room.iter_mut().zip(text).for_each(|(room, byte)| *room = *byte);
        }
        self.length = end;
    }

    fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}
