use super::*;

fn skipped(json: &[u8]) -> Result<(), Malformed> {
    let mut reader = Reader::new(json);
    reader.skip_value()?;
    reader.end()
}

#[test]
fn values_are_passed_over_whole() {
    for json in [
        "{}",
        "[]",
        "[[],{}]",
        " [ 1 , -2.5e+10 , true , false , null , \"a\" ] ",
        r#"{"a":{"b":[{"c":[]}]},"d":0}"#,
        "-0",
        "0.0",
        "1E5",
        "\"\"",
        r#""\"\\\/\b\f\n\r\t\u00e9""#,
        "\"0123456789\u{7f}é\"",
    ] {
        assert_eq!(skipped(json.as_bytes()), Ok(()), "{json}");
    }
}

#[test]
fn what_rfc_8259_does_not_have_is_malformed() {
    for json in [
        "",
        " ",
        "{",
        "[",
        "{]",
        "[}",
        "[1,]",
        "{\"a\":1,}",
        "{\"a\"}",
        "{\"a\":}",
        "{a:1}",
        "{1:1}",
        "[1 2]",
        "1 2",
        "01",
        "-",
        "+1",
        ".5",
        "1.",
        "1e",
        "1e+",
        "tru",
        "True",
        "nul",
        "NaN",
        "Infinity",
        "'a'",
        "\"a",
        "\"\\x\"",
        "\"\\u12g4\"",
        "\"\\u12",
        "\"a\nb\"",
        "\"01234567\u{1f}\"",
        "[]]",
        "{}}",
        "// a\n1",
        "{\"a\" 1}",
        "[,1]",
    ] {
        assert_eq!(skipped(json.as_bytes()), Err(Malformed), "{json}");
    }
}

#[test]
fn nesting_is_bounded() {
    let nested = |depth: usize| format!("{}{}", "[{\"a\":".repeat(depth / 2), "[".repeat(depth % 2));
    let closed = |depth: usize| format!("{}1{}{}", nested(depth), "]".repeat(depth % 2), "}]".repeat(depth / 2));
    assert_eq!(skipped(closed(128).as_bytes()), Ok(()));
    assert_eq!(skipped(closed(127).as_bytes()), Ok(()));
    assert_eq!(skipped(closed(129).as_bytes()), Err(Malformed));
    assert_eq!(skipped("[".repeat(10_000_000).as_bytes()), Err(Malformed));
}

#[test]
fn every_byte_in_every_place_of_a_word_is_seen() {
    for place in 0..24 {
        for byte in 0..=255u8 {
            let mut text = [b'a'; 24];
            text[place] = byte;
            let json = [b"\"", &text[..], b"\""].concat();
            let plain = byte >= 0x20 && byte != b'"' && byte != b'\\';
            let escape = byte == b'\\' && skipped(&json).is_ok();
            assert_eq!(skipped(&json).is_ok(), plain || escape, "{byte:#x} at {place}");
        }
    }
}

#[test]
fn text_is_unescaped() {
    let text = |json: &str| Reader::new(json.as_bytes()).text().map(Cow::into_owned);
    assert_eq!(text(r#""plain é""#).as_deref(), Ok("plain é"));
    assert_eq!(text(r#""\u0041\n\ud83d\ude00""#).as_deref(), Ok("A\n😀"));
    assert_eq!(text(r#""\ud83d""#), Err(Malformed));
    assert_eq!(Reader::new(b"\"\xff\"").text(), Err(Malformed));
}

#[test]
fn whole_numbers_are_told_from_others() {
    let number = |json: &str| Reader::new(json.as_bytes()).whole_number();
    assert_eq!(number("18446744073709551615"), Ok(Some(u64::MAX)));
    for json in ["18446744073709551616", "-1", "1.0", "1e3"] {
        assert_eq!(number(json), Ok(None), "{json}");
    }
    for json in ["", "a", "-", "1."] {
        assert_eq!(number(json), Err(Malformed), "{json}");
    }
}
