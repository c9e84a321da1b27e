//! Tests of grammar.rs: what may be said, and that whatever is compiled ends in time.

use super::*;

const LIMITS: Limits = Limits {
    compile_steps_max: 1_000_000,
    mask_steps_max: 200_000,
    symbols_max: 200_000,
    lexer_states_max: 40_000,
};

fn vocabulary() -> Vocabulary {
    let bytes: Vec<[u8; 1]> = (0..=255u8).map(|b| [b]).collect();
    let mut tokens: Vec<(&[u8], bool)> = bytes.iter().map(|b| (&b[..], false)).collect();
    tokens.push((b"<end>", true));
    Vocabulary::new(tokens.into_iter(), 257).expect("the vocabulary is fine")
}

fn json(schema: &str) -> Source<'_> {
    Source {
        kind: Kind::Json,
        text: "",
        schemas: vec![schema],
        compact: false,
        whitespace: "",
        no_additional_properties: false,
    }
}

fn accepts(state: &mut State, text: &str) -> bool {
    let mut bits = [0u32; 9];
    for byte in text.bytes() {
        if state.has_ended() || state.mask(&mut bits).is_err() {
            return false;
        }
        if bits[usize::from(byte / 32)] >> (byte % 32) & 1 == 0 {
            return false;
        }
        if state.consume(u32::from(byte)).is_err() {
            return false;
        }
    }
    state.is_accepting()
}

fn compile(schema: &str) -> Result<Arc<Grammar>, String> {
    Grammar::compile(&vocabulary(), &json(schema), LIMITS).map(Arc::new)
}

#[test]
fn a_key_cannot_hide_from_its_schema_in_escapes() {
    let grammar = compile(r#"{"properties":{"a":{"type":"integer"}}}"#).expect("compiles");
    assert!(accepts(&mut grammar.state(), r#"{"a":1}"#));
    assert!(accepts(&mut grammar.state(), r#"{"b":"x"}"#));
    assert!(!accepts(&mut grammar.state(), r#"{"a":"x"}"#));
    assert!(!accepts(&mut grammar.state(), r#"{"\u0061":"x"}"#));
}

#[test]
fn the_end_is_known_at_the_last_token() {
    let grammar = compile(r#"{"type":"object"}"#).expect("compiles");
    let mut state = grammar.state();
    assert!(accepts(&mut state, "{ \"a\" : [1, 2.5e3, null] }"));
    assert!(state.has_ended());
}

#[test]
fn a_copy_goes_its_own_way_and_a_rollback_comes_back() {
    let grammar = compile(r#"{"enum":["ab","ac"]}"#).expect("compiles");
    let mut state = grammar.state();
    assert!(!accepts(&mut state, "\"a"));
    let mut copy = state.clone();
    assert!(accepts(&mut copy, "b\""));
    assert!(copy.rollback(2).is_ok());
    assert!(accepts(&mut copy, "c\""));
    assert!(copy.rollback(4).is_ok());
    assert!(accepts(&mut copy, "\"ab\""));
    assert!(accepts(&mut state, "c\""));
}

#[test]
fn white_space_ends() {
    let grammar = compile(r#"{"type":"array"}"#).expect("compiles");
    let spaces = " ".repeat(64);
    assert!(accepts(&mut grammar.state(), &format!("[{spaces}1]")));
    assert!(!accepts(&mut grammar.state(), &format!("[{spaces} 1]")));
}

#[test]
fn a_day_that_does_not_exist_is_no_date() {
    let grammar = compile(r#"{"type":"string","format":"date"}"#).expect("compiles");
    for (day, exists) in [
        ("2024-02-29", true),
        ("2023-02-29", false),
        ("1900-02-29", false),
        ("2000-02-29", true),
        ("2023-04-31", false),
    ] {
        assert_eq!(
            accepts(&mut grammar.state(), &format!("\"{day}\"")),
            exists,
            "{day}"
        );
    }
}

#[test]
fn formats_are_no_wider_than_their_standards() {
    let grammar = |format: &str| {
        compile(&format!(r#"{{"type":"string","format":"{format}"}}"#)).expect("compiles")
    };
    for (format, text, good) in [
        ("time", "23:59:59.5+01:00", true),
        ("time", "22:59:60Z", false),
        ("date-time", "2024-02-29T00:00:00Z", true),
        ("date-time", "2023-02-29T00:00:00Z", false),
        ("hostname", "a.b-c.d--e", true),
        ("hostname", "ab--c.de", false),
        ("hostname", "a-.b", false),
        ("hostname", "a", true),
    ] {
        let quoted = format!("\"{text}\"");
        assert_eq!(
            accepts(&mut grammar(format).state(), &quoted),
            good,
            "{text}"
        );
    }
}

/// A few steps of whatever may be said, on a stack as small as this thread's.
fn walk(grammar: &Arc<Grammar>) {
    let mut state = grammar.state();
    let mut bits = [0u32; 9];
    for step in 0..8 {
        if state.has_ended() || state.mask(&mut bits).is_err() {
            return;
        }
        let allowed: Vec<u32> = (0..256u32)
            .filter(|token| bits[(token / 32) as usize] >> (token % 32) & 1 == 1)
            .collect();
        if allowed.is_empty() || state.consume(allowed[step * 7 % allowed.len()]).is_err() {
            return;
        }
    }
}

fn within_seconds(what: &str, source: &Source) -> Result<(), String> {
    let began = std::time::Instant::now();
    let result = Grammar::compile(&vocabulary(), source, LIMITS).map(Arc::new);
    let compiled = began.elapsed().as_secs_f64();
    if let Ok(grammar) = &result {
        walk(grammar);
    }
    let walked = began.elapsed().as_secs_f64() - compiled;
    let result = result.map(|grammar| assert!(grammar.bytes() > 0));
    let shown: String = format!("{result:?}").chars().take(120).collect();
    println!("{compiled:.3} s, 8 steps {walked:.3} s  {what:.40}: {shown}");
    assert!(
        compiled < 3.0 && walked < 2.0,
        "{what:.40} took {compiled} and {walked} s"
    );
    result
}

#[test]
fn regular_expressions_that_explode_end_in_time() {
    for (text, good) in [
        ("(a+)+b", true),
        ("(a|a)*", true),
        ("(x+x+)+y", true),
        ("(", false),
        ("[", false),
        ("{{1}}", false),
        ("\\", false),
        ("a{1000}{1000}", false),
        ("(a?){500}a{500}", true),
        ("(.*a){40}", true),
        ("[ab]*a[ab]{400}", true),
        ("(?=a)b", false),
    ] {
        let source = Source {
            kind: Kind::Regex,
            text,
            ..json("")
        };
        let source = Source {
            schemas: vec![],
            ..source
        };
        let result = within_seconds(text, &source);
        assert!(!good || result.is_ok(), "{text}: {result:?}");
    }
    for text in [
        "(".repeat(10_000) + &")".repeat(10_000),
        "a|".repeat(10_000),
        "[^a]{1,5000}".repeat(50),
        "\\p{L}{0,5000}".into(),
        "((((a{9}){9}){9}){9}){9}".into(),
    ] {
        let source = Source {
            kind: Kind::Regex,
            text: &text,
            ..json("")
        };
        let _ = within_seconds(
            &text,
            &Source {
                schemas: vec![],
                ..source
            },
        );
    }
}

#[test]
fn grammars_that_explode_end_in_time() {
    let chain: String = (0..3_000).map(|i| format!("r{i}: r{}\n", i + 1)).collect();
    for text in [
        "start: start".to_string(),
        "start: start start | \"a\"".into(),
        "start: a\na: b\nb: a".into(),
        "start: start \"a\" | \"a\"".into(),
        format!("start: {}\"a\"{}", "(".repeat(30_000), ")".repeat(30_000)),
        format!("start: r0\n{chain}r3000: \"x\""),
        "start: (\"a\"?){10000}".into(),
        "start: ((((\"a\"{99}){99}){99}){99}){99}".into(),
        "start: (((\"a\"*)*)*)*".into(),
        "start: /a/ nowhere".into(),
        String::new(),
        "\u{0}".into(),
    ] {
        let source = Source {
            kind: Kind::Lark,
            text: &text,
            ..json("")
        };
        let _ = within_seconds(
            &text,
            &Source {
                schemas: vec![],
                ..source
            },
        );
    }
}

#[test]
fn schemas_that_explode_end_in_time() {
    let chain: String = (0..1_500)
        .map(|i| format!("\"d{i}\":{{\"$ref\":\"#/$defs/d{}\"}},", i + 1))
        .collect();
    let many: String = (0..2_000)
        .map(|i| format!("\"p{i}\":{{\"type\":\"string\"}},"))
        .collect();
    let options: String = (0..500)
        .map(|i| format!("{{\"properties\":{{\"k{i}\":{{}}}}}},"))
        .collect();
    for text in [
        r##"{"$ref":"#"}"##.to_string(),
        r##"{"$ref":"#/nowhere"}"##.into(),
        r#"{"$ref":"file:///etc/passwd"}"#.into(),
        r#"{"type":"something"}"#.into(),
        r#"{"minimum":"x"}"#.into(),
        r#"{"multipleOf":0}"#.into(),
        r#"{"multipleOf":1e-300}"#.into(),
        r#"{"minimum":-1e15,"maximum":1e15,"multipleOf":0.0000001}"#.into(),
        r#"{"type":"string","minLength":100000}"#.into(),
        r#"{"type":"string","pattern":"^(a|b)*a(a|b){12}$","minLength":10000}"#.into(),
        r#"{"type":"array","minItems":100000,"items":{"type":"object"}}"#.into(),
        r##"{"allOf":[{"$ref":"#/$defs/a"},{"$ref":"#/$defs/b"}],"$defs":{
              "a":{"properties":{"c":{"$ref":"#/$defs/a"}}},
              "b":{"properties":{"c":{"$ref":"#/$defs/b"}}}}}"##
            .into(),
        format!(
            "{{\"$ref\":\"#/$defs/d0\",\"$defs\":{{{chain}{}}}}}",
            r#""d1500":{"type":"null"}"#
        ),
        format!(
            "{{\"allOf\":[{{\"anyOf\":[{options}true]}},{{\"properties\":{{{many}{}}}}}]}}",
            r#""z":{}"#
        ),
        format!("{{\"oneOf\":[{options}false]}}"),
        format!("{{\"enum\":[{}1]}}", "\"abcdefghij\",".repeat(10_000)),
        "[".repeat(100_000),
        format!("{}{}", "{\"items\":".repeat(100), "}".repeat(100)),
        format!("{{\"description\":\"{}\"}}", "x".repeat(2 << 20)),
    ] {
        let _ = within_seconds(&text, &json(&text));
    }
}

#[test]
fn grammars_name_their_schemas() {
    let source = Source {
        kind: Kind::Lark,
        text: r#"start: "<a>" @schema_0 "</a>" <end>"#,
        schemas: vec![r#"{"type":"integer"}"#],
        ..json("")
    };
    let grammar = Arc::new(Grammar::compile(&vocabulary(), &source, LIMITS).expect("compiles"));
    let mut state = grammar.state();
    assert!(!accepts(&mut state, "<a>12</a>"));
    assert!(state.consume(256).is_ok());
    assert!(state.has_ended());
}
