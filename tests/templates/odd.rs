//! Every filter, test, method and function of the template engine, on odd values and with odd arguments.

use warmroute::template::{Chat, ChatTemplate, Limits, LocalTime, SpecialTokens, parse_json};

const CLOCK: LocalTime = LocalTime { unix_seconds: 1_796_040_000, utc_offset_seconds: 3_600 };
const LIMITS: Limits = Limits { fuel: 50_000, output_bytes: 1 << 20 };

const FILTERS: [&str; 56] = [
    "abs",
    "attr",
    "batch",
    "bool",
    "capitalize",
    "center",
    "chain",
    "count",
    "d",
    "default",
    "dictsort",
    "e",
    "escape",
    "filesizeformat",
    "first",
    "float",
    "format",
    "groupby",
    "indent",
    "int",
    "items",
    "join",
    "last",
    "length",
    "lines",
    "list",
    "lower",
    "map",
    "max",
    "min",
    "pprint",
    "random",
    "reject",
    "rejectattr",
    "replace",
    "reverse",
    "round",
    "safe",
    "select",
    "selectattr",
    "slice",
    "sort",
    "split",
    "string",
    "striptags",
    "sum",
    "title",
    "tojson",
    "trim",
    "truncate",
    "unique",
    "upper",
    "urlencode",
    "wordcount",
    "wordwrap",
    "zip",
];
const TESTS: [&str; 22] = [
    "boolean",
    "containing",
    "defined",
    "divisibleby",
    "endingwith",
    "eq",
    "even",
    "filter",
    "ge",
    "in",
    "iterable",
    "lower",
    "mapping",
    "number",
    "odd",
    "safe",
    "sameas",
    "sequence",
    "startingwith",
    "string",
    "test",
    "undefined",
];
const METHODS: [&str; 33] = [
    "capitalize",
    "count",
    "endswith",
    "find",
    "format",
    "get",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdigit",
    "islower",
    "isnumeric",
    "isspace",
    "isupper",
    "items",
    "join",
    "keys",
    "ljust",
    "lower",
    "lstrip",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "title",
    "values",
];
const FUNCTIONS: [&str; 9] =
    ["cycler", "dict", "joiner", "lipsum", "namespace", "range", "raise_exception", "strftime_now", "loop.cycle"];
const VALUES: [&str; 13] = [
    "''",
    "'\u{e9}\u{df} \u{1f600}A b\\n'",
    "0",
    "-1",
    "1.5",
    "1e308",
    "9223372036854775807",
    "[]",
    "[1, 'a', none]",
    "{}",
    "{'a': 1, 2: []}",
    "none",
    "nothing",
];
const ARGUMENTS: [&str; 17] = [
    "",
    "0",
    "-1",
    "70000",
    "2147483648",
    "-9223372036854775808",
    "9223372036854775807",
    "''",
    "'\u{e9}'",
    "none",
    "[]",
    "1.5",
    "0, 0",
    "-1, -1, -1",
    "'a', ''",
    "'a', 'b', 70000",
    "*[]",
];
/// What formats end with, after their `%` or within their braces.
const SPECIFIERS: [&str; 24] = [
    "",
    "s",
    "d",
    "f",
    "e",
    "g",
    "x",
    "c",
    "%",
    "0d",
    "05d",
    "070000d",
    "70000d",
    ".70000f",
    ".70000d",
    ".70000e",
    ".70000g",
    ".70000s",
    ".99999999999999999999f",
    "+,d",
    "*d",
    "(",
    "(a)s",
    "(b)70000d",
];

/// Renders all of them, or every `step`th.
pub fn odd_arguments_never_panic(step: usize) {
    let calls = |head: &str, name: &str, tail: &str| {
        let each = |value: &&str| ARGUMENTS.map(|given| format!("{{{{ ({value}){head}{name}{tail}({given}) }}}}"));
        VALUES.iter().flat_map(each).collect::<Vec<_>>()
    };
    let mut sources: Vec<String> = FILTERS.iter().flat_map(|name| calls(" | ", name, "")).collect();
    sources.extend(TESTS.iter().flat_map(|name| calls(" is ", name, "")));
    sources.extend(METHODS.iter().flat_map(|name| calls(".", name, "")));
    for (name, given) in FUNCTIONS.iter().flat_map(|name| ARGUMENTS.map(|given| (name, given))) {
        sources.push(format!("{{% for x in [1, 2] %}}{{{{ {name}({given}) }}}}{{% endfor %}}"));
    }
    for specifier in SPECIFIERS {
        for value in VALUES {
            sources.push(format!("{{{{ '%{specifier}' | format({value}) }}}}"));
            sources.push(format!("{{{{ '%-{specifier}%(a){specifier}' | format({value}, a={value}) }}}}"));
            sources.push(format!("{{{{ '{{:{specifier}}}'.format({value}) }}}}"));
            sources.push(format!("{{{{ '%{specifier}' % {value} }}}}"));
        }
    }
    for operator in ["//", "%", "**", "/", "*", "-", "+", "~", "<", "in"] {
        for (left, right) in VALUES.iter().flat_map(|left| VALUES.map(|right| (left, right))) {
            sources.push(format!("{{{{ ({left}) {operator} ({right}) }}}}"));
        }
    }
    for (from, to) in VALUES.iter().flat_map(|from| VALUES.map(|to| (from, to))) {
        sources.push(format!(
            "{{{{ 'a\u{e9}b'[{from}:{to}] }}}}{{{{ [1, 2][{from}:{to}:{from}] }}}}{{{{ [1][{from}] }}}}"
        ));
    }
    let messages = parse_json(br#"[{"role": "user", "content": "Hi"}]"#).unwrap();
    let chat = Chat::new(messages.try_iter().unwrap().collect());
    let special = SpecialTokens::new(None, None);
    let mut rendered = 0;
    for source in sources.iter().step_by(step) {
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            ChatTemplate::compile(source, &special, LIMITS).is_ok_and(|template| template.render(&chat, CLOCK).is_ok())
        }));
        rendered += usize::from(outcome.unwrap_or_else(|_| panic!("panics: {source}")));
    }
    assert!(rendered * 10 > sources.len() / step, "only {rendered} of {} were rendered", sources.len() / step);
}
