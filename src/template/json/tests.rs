use super::*;

fn read(text: &str) -> Result<Value, InvalidJson> {
    parse_json(text.as_bytes())
}

#[test]
fn reads_what_serde_json_reads() {
    let texts = [
        r#"{"a": [1, -2.5, 1e3, true, false, null, "x\n\"\\\/\b\f\r\té\ud83d\ude00"], "b": {}, "c": []}"#,
        " [ 0 , 0.0 , 12345678901234567890 ] ",
        "\"\"",
        "\u{feff}1",
        "01",
        "1.",
        ".5",
        "+1",
        "1e",
        "[1,]",
        "{\"a\":1,}",
        "{\"a\"}",
        "[",
        "\"\\ud800\"",
        "\"\\ud800\\u0041\"",
        "\"\\udc00\"",
        "\"\\x\"",
        "\"a",
        "\"\t\"",
        "nul",
        "1 2",
        "",
    ];
    for text in texts {
        let expected: Result<serde_json::Value, _> = serde_json::from_str(text);
        match (read(text), expected) {
            (Ok(value), Ok(expected)) => assert_eq!(serde_json::to_value(&value).unwrap(), expected, "{text}"),
            (Err(_), Err(_)) => {}
            (found, expected) => panic!("{text}: {found:?}, not {expected:?}"),
        }
    }
}

#[test]
fn numbers_print_as_in_python() {
    let pairs = [
        ("-0", "0"),
        ("-0.0", "-0.0"),
        ("123456789012345678901234567890", "123456789012345678901234567890"),
        ("1e999", "inf"),
        ("9223372036854775808", "9223372036854775808"),
    ];
    for (text, expected) in pairs {
        let mut out = String::new();
        super::super::python::write_str(&mut out, &read(text).unwrap()).unwrap();
        assert_eq!(out, expected);
    }
    assert!(read(&"9".repeat(40)).is_err());
}

#[test]
fn of_a_key_given_twice_the_last_value_stands_in_the_first_place() {
    assert_eq!(read(r#"{"a": 1, "b": 2, "a": 3}"#).unwrap().to_string(), "{'a': 3, 'b': 2}");
}

#[test]
fn the_number_of_values_is_bounded() {
    let of = |values: usize| format!("[{}]", vec!["{}"; values - 1].join(","));
    assert!(parse_json_of(of(100).as_bytes(), &mut 100).is_ok());
    let refused = parse_json_of(of(101).as_bytes(), &mut 100).unwrap_err();
    assert!(refused.is_too_many(), "{refused}");
    assert!(parse_json(of(100_000).as_bytes()).is_ok(), "a file may have as many as it likes");
}

#[test]
fn nesting_is_bounded() {
    assert!(read(&format!("{}1{}", "[".repeat(128), "]".repeat(128))).is_ok());
    assert!(read(&"[".repeat(100_000)).is_err());
    assert!(read(&"{\"a\":".repeat(100_000)).is_err());
}
