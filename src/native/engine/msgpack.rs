//! MessagePack read value by value, from bytes that may be anything.
//!
//! In: a payload. Out: scalars, and the lengths of lists and maps, whose items follow. Nothing is copied and nothing is
//! set aside for a length that is only declared, so a payload costs what it weighs. Format: MessagePack's `spec.md`; the
//! meaning of a first byte is `rmp`'s.

use rmp::Marker;

/// A position in a payload.
#[derive(Clone, Copy, Debug)]
pub struct Cursor<'a> {
    rest: &'a [u8],
}

/// A value; the items of a list or map follow it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    /// Nothing.
    Nil,
    /// A truth value.
    Bool(bool),
    /// An integer of at least 0.
    Unsigned(u64),
    /// An integer below 0.
    Negative(i64),
    /// A number.
    Float(f64),
    /// Text, which is not necessarily UTF-8.
    Text(&'a [u8]),
    /// Bytes.
    Bytes(&'a [u8]),
    /// So many values follow.
    List(u64),
    /// So many pairs of key and value follow.
    Map(u64),
    /// A value of a type that an application gives meaning to.
    Extension,
}

/// The bytes end too early, or are not MessagePack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

// === impl Cursor ===

impl<'a> Cursor<'a> {
    /// The start of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Cursor<'a> {
        Cursor { rest: bytes }
    }

    /// Whether nothing follows.
    pub fn is_at_end(&self) -> bool {
        self.rest.is_empty()
    }

    /// The most items that can follow, of `declared`: each takes a byte.
    pub fn capacity(&self, declared: u64) -> usize {
        usize::try_from(declared).unwrap_or(usize::MAX).min(self.rest.len())
    }

    /// The next value.
    ///
    /// # Errors
    /// When there is none.
    pub fn value(&mut self) -> Result<Value<'a>, Malformed> {
        let [first] = self.array()?;
        Ok(match Marker::from_u8(first) {
            Marker::Null => Value::Nil,
            Marker::True => Value::Bool(true),
            Marker::False => Value::Bool(false),
            Marker::FixPos(value) => Value::Unsigned(u64::from(value)),
            Marker::FixNeg(value) => signed(i64::from(value)),
            Marker::U8 => Value::Unsigned(u64::from(u8::from_be_bytes(self.array()?))),
            Marker::U16 => Value::Unsigned(u64::from(u16::from_be_bytes(self.array()?))),
            Marker::U32 => Value::Unsigned(u64::from(u32::from_be_bytes(self.array()?))),
            Marker::U64 => Value::Unsigned(u64::from_be_bytes(self.array()?)),
            Marker::I8 => signed(i64::from(i8::from_be_bytes(self.array()?))),
            Marker::I16 => signed(i64::from(i16::from_be_bytes(self.array()?))),
            Marker::I32 => signed(i64::from(i32::from_be_bytes(self.array()?))),
            Marker::I64 => signed(i64::from_be_bytes(self.array()?)),
            Marker::F32 => Value::Float(f64::from(f32::from_be_bytes(self.array()?))),
            Marker::F64 => Value::Float(f64::from_be_bytes(self.array()?)),
            Marker::FixStr(length) => Value::Text(self.bytes(u64::from(length))?),
            Marker::Str8 | Marker::Str16 | Marker::Str32 => Value::Text(self.counted(first - 0xD9)?),
            Marker::Bin8 | Marker::Bin16 | Marker::Bin32 => Value::Bytes(self.counted(first - 0xC4)?),
            Marker::FixArray(items) => Value::List(u64::from(items)),
            Marker::Array16 | Marker::Array32 => Value::List(self.number(first - 0xDC + 1)?),
            Marker::FixMap(pairs) => Value::Map(u64::from(pairs)),
            Marker::Map16 | Marker::Map32 => Value::Map(self.number(first - 0xDE + 1)?),
            Marker::Ext8 | Marker::Ext16 | Marker::Ext32 => {
                let length = self.number(first - 0xC7)?;
                self.extension(length)?
            }
            Marker::FixExt1 | Marker::FixExt2 | Marker::FixExt4 | Marker::FixExt8 | Marker::FixExt16 => {
                self.extension(1 << (first - 0xD4))?
            }
            Marker::Reserved => return Err(Malformed),
        })
    }

    /// The next value if it is an integer that is written in at most 32 bits without a sign: most of what there is.
    pub fn next_id(&mut self) -> Option<u32> {
        let (id, rest) = match self.rest {
            [id @ ..0x80, rest @ ..] => (u32::from(*id), rest),
            [0xCC, id, rest @ ..] => (u32::from(*id), rest),
            [0xCD, a, b, rest @ ..] => (u32::from(u16::from_be_bytes([*a, *b])), rest),
            [0xCE, a, b, c, d, rest @ ..] => (u32::from_be_bytes([*a, *b, *c, *d]), rest),
            _ => return None,
        };
        self.rest = rest;
        Some(id)
    }

    /// Passes over the next value with all that it contains, however deep.
    ///
    /// # Errors
    /// When it does not end.
    pub fn skip(&mut self) -> Result<(), Malformed> {
        let mut left = 1_u64;
        while left > 0 {
            left -= 1;
            let first = *self.rest.first().ok_or(Malformed)?;
            if let Some(length @ 1..) = FIXED_LENGTHS.get(usize::from(first)) {
                self.rest = self.rest.get(usize::from(*length)..).ok_or(Malformed)?;
                continue;
            }
            match self.value()? {
                Value::List(items) => left = left.saturating_add(items),
                Value::Map(pairs) => left = left.saturating_add(pairs.saturating_mul(2)),
                _ => {}
            }
        }
        Ok(())
    }

    /// The next value with all that it contains, as a payload of its own.
    ///
    /// # Errors
    /// When it does not end.
    pub fn take(&mut self) -> Result<Cursor<'a>, Malformed> {
        let whole = self.rest;
        self.skip()?;
        let length = whole.len() - self.rest.len();
        Ok(Cursor { rest: whole.get(..length).ok_or(Malformed)? })
    }

    fn extension(&mut self, length: u64) -> Result<Value<'a>, Malformed> {
        self.bytes(length + 1)?;
        Ok(Value::Extension)
    }

    /// Bytes after their number, which takes 2 to the power of `width` bytes.
    fn counted(&mut self, width: u8) -> Result<&'a [u8], Malformed> {
        let length = self.number(width)?;
        self.bytes(length)
    }

    /// A number of 2 to the power of `width` bytes, at most 4.
    fn number(&mut self, width: u8) -> Result<u64, Malformed> {
        Ok(match width {
            0 => u64::from(u8::from_be_bytes(self.array()?)),
            1 => u64::from(u16::from_be_bytes(self.array()?)),
            _ => u64::from(u32::from_be_bytes(self.array()?)),
        })
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (array, rest) = self.rest.split_first_chunk().ok_or(Malformed)?;
        self.rest = rest;
        Ok(*array)
    }

    fn bytes(&mut self, length: u64) -> Result<&'a [u8], Malformed> {
        let length = usize::try_from(length).map_err(|_| Malformed)?;
        let (bytes, rest) = self.rest.split_at_checked(length).ok_or(Malformed)?;
        self.rest = rest;
        Ok(bytes)
    }
}

/// Bytes of a value by its first one, where that says it and nothing is in it; else 0.
const FIXED_LENGTHS: [u8; 256] = {
    let mut lengths = [0; 256];
    let mut first = 0_u8;
    loop {
        let length = match first {
            0..=0x7F | 0xE0..=0xFF | 0xC0 | 0xC2 | 0xC3 => 1,
            0xCC | 0xD0 => 2,
            0xCD | 0xD1 => 3,
            0xCA | 0xCE | 0xD2 => 5,
            0xCB | 0xCF | 0xD3 => 9,
            _ => 0,
        };
        // As long as there are bytes.
        #[allow(clippy::indexing_slicing)]
        {
            lengths[first as usize] = length;
        }
        if first == u8::MAX {
            break lengths;
        }
        first += 1;
    }
};

/// A number is the same whether it was written with or without a sign.
fn signed(value: i64) -> Value<'static> {
    u64::try_from(value).map_or(Value::Negative(value), Value::Unsigned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(value: &rmpv::Value) -> Vec<u8> {
        let mut bytes = Vec::new();
        rmpv::encode::write_value(&mut bytes, value).unwrap();
        bytes
    }

    /// What the other reader makes of it.
    fn rebuilt(cursor: &mut Cursor<'_>) -> rmpv::Value {
        match cursor.value().unwrap() {
            Value::Nil => rmpv::Value::Nil,
            Value::Bool(value) => value.into(),
            Value::Unsigned(value) => value.into(),
            Value::Negative(value) => value.into(),
            Value::Float(value) => value.into(),
            Value::Text(text) => std::str::from_utf8(text).unwrap().into(),
            Value::Bytes(bytes) => bytes.into(),
            Value::List(items) => (0..items).map(|_| rebuilt(cursor)).collect::<Vec<_>>().into(),
            Value::Map(pairs) => rmpv::Value::Map((0..pairs).map(|_| (rebuilt(cursor), rebuilt(cursor))).collect()),
            Value::Extension => rmpv::Value::Ext(7, vec![1, 2, 3]),
        }
    }

    #[test]
    fn every_form_of_a_value_is_read() {
        let mut values: Vec<rmpv::Value> = vec![rmpv::Value::Nil, true.into(), false.into(), 1.5.into()];
        for shift in 0..64 {
            values.push((u64::MAX >> shift).into());
            values.push((i64::MIN >> shift).into());
        }
        for length in [0_usize, 1, 15, 16, 31, 32, 255, 256, 65_535, 65_536] {
            values.push("x".repeat(length).into());
            values.push(vec![7_u8; length].as_slice().into());
            values.push(vec![rmpv::Value::Nil; length].into());
            values.push(rmpv::Value::Map(vec![(1.into(), rmpv::Value::Nil); length]));
        }
        values.push(rmpv::Value::Ext(7, vec![1, 2, 3]));
        let all = rmpv::Value::Array(values);
        let bytes = encoded(&all);
        let mut cursor = Cursor::new(&bytes);
        assert_eq!(rebuilt(&mut cursor), all);
        assert!(cursor.is_at_end());
        let mut cursor = Cursor::new(&bytes);
        cursor.skip().unwrap();
        assert!(cursor.is_at_end());
    }

    #[test]
    fn extensions_of_every_width_are_passed_over() {
        for length in [1_usize, 2, 4, 8, 16, 3, 300, 70_000] {
            let bytes = encoded(&rmpv::Value::Ext(9, vec![0xC1; length]));
            let mut cursor = Cursor::new(&bytes);
            assert_eq!(cursor.value(), Ok(Value::Extension));
            assert!(cursor.is_at_end(), "{length}");
        }
        let mut float = Cursor::new(&[0xCA, 0x3F, 0xC0, 0, 0]);
        assert_eq!(float.value(), Ok(Value::Float(1.5)));
    }

    #[test]
    fn an_id_is_what_a_number_is() {
        for number in (0..64).map(|shift| u64::MAX >> shift).chain([0, 0x80, 0x100, 0x1_0000]) {
            let bytes = encoded(&number.into());
            let mut cursor = Cursor::new(&bytes);
            assert_eq!(cursor.next_id().map(u64::from), u32::try_from(number).ok().map(u64::from));
            assert_eq!(cursor.is_at_end(), number <= u64::from(u32::MAX));
        }
        assert_eq!(Cursor::new(&[0xCE, 0, 0]).next_id(), None);
        assert_eq!(Cursor::new(&[0xFF]).next_id(), None);
    }

    #[test]
    fn a_declared_length_costs_nothing() {
        for first in [0xDD_u8, 0xDF, 0xC6, 0xDB, 0xC9] {
            let bytes = [first, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0];
            assert_eq!(Cursor::new(&bytes).skip(), Err(Malformed), "{first:x}");
        }
        assert_eq!(Cursor::new(&[0, 0]).capacity(u64::MAX), 2);
        // As deep as it is long.
        assert_eq!(Cursor::new(&[0x91; 100_000]).skip(), Err(Malformed));
    }

    #[test]
    fn a_value_is_taken_with_what_it_contains() {
        let bytes = encoded(&rmpv::Value::Array(vec![1.into(), vec![rmpv::Value::from(2)].into()]));
        let mut cursor = Cursor::new(&bytes);
        let mut taken = cursor.take().unwrap();
        assert!(cursor.is_at_end());
        assert_eq!(taken.value(), Ok(Value::List(2)));
    }
}
