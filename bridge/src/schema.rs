//! Makes sure that no JSON schema is half enforced. llguidance enforces what it implements and
//! refuses most of the rest; this walk refuses, and names, what it would let through unseen:
//! keywords of other drafts, its own `x-guidance` switches, numbers that a double cannot hold, and
//! counts that duplicate keys would get around. What makes no difference is taken out first.

use std::collections::HashSet;

use serde_json::{Map, Number, Value};

use crate::grammar::check_regex_end;

/// Keywords of any draft that restrict what is valid and that no grammar here expresses.
const UNENFORCED: [&str; 21] = [
    "$dynamicRef",
    "$recursiveRef",
    "$vocabulary",
    "contains",
    "contentSchema",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "disallow",
    "divisibleBy",
    "else",
    "extends",
    "if",
    "maxContains",
    "minContains",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
    "uniqueItems",
];

/// Where a schema holds one schema, several by name, or several in a list.
const ONE: [&str; 3] = ["additionalItems", "additionalProperties", "items"];
const NAMED: [&str; 4] = ["$defs", "definitions", "patternProperties", "properties"];
const LISTED: [&str; 5] = ["allOf", "anyOf", "items", "oneOf", "prefixItems"];

const NUMERIC: [&str; 5] = [
    "exclusiveMaximum",
    "exclusiveMinimum",
    "maximum",
    "minimum",
    "multipleOf",
];

const FORMATS: [&str; 10] = [
    "date",
    "date-time",
    "duration",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "time",
    "uri",
    "uuid",
];

const DRAFTS: [&str; 6] = [
    "json-schema.org/draft/2020-12/schema",
    "json-schema.org/draft/2019-09/schema",
    "json-schema.org/draft-07/schema",
    "json-schema.org/draft-06/schema",
    "json-schema.org/draft-04/schema",
    "json-schema.org/schema",
];

/// llguidance's own patterns let some strings through that their formats do not allow. These are
/// stricter than the formats where it costs nothing: no leap seconds, no punycode.
const DATE: &str = concat!(
    r"(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])",
    r"|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))",
    r"|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)"
);
const TIME: &str = concat!(
    r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?",
    r"(?:[zZ]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
);
const LABEL: &str = concat!(
    r"[a-zA-Z0-9](?:[a-zA-Z0-9-]?[a-zA-Z0-9]|[a-zA-Z0-9-]{2}[a-zA-Z0-9]",
    r"|[a-zA-Z0-9-](?:[a-zA-Z0-9][a-zA-Z0-9-]|-[a-zA-Z0-9])[a-zA-Z0-9-]{0,58}[a-zA-Z0-9])?"
);
const HOSTNAME_LENGTH_MAX: u64 = 253;

/// What stands for a format, when it is more than llguidance makes of it.
fn format_rule(name: &str) -> Option<Value> {
    let pattern = match name {
        "date" => format!("^{DATE}$"),
        "time" => format!("^{TIME}$"),
        "date-time" => format!("^{DATE}[tT]{TIME}$"),
        "hostname" => format!(r"^{LABEL}(?:\.{LABEL})*$"),
        _ => return None,
    };
    let mut rule = Map::from_iter([("pattern".to_string(), Value::String(pattern))]);
    if name == "hostname" {
        rule.insert("maxLength".into(), HOSTNAME_LENGTH_MAX.into());
    }
    Some(Value::Object(rule))
}

/// Schemas beyond these take more time or memory to compile than a request may.
const SCHEMAS_MAX: usize = 20_000;
const VALUES_MAX: usize = 20_000; // of const and enum, parts included
const PATTERNS_MAX: usize = 64;
const PATTERN_BYTES_MAX: usize = 4_096;
const PATTERN_PROPERTIES_MAX: usize = 16;
const ALTERNATIVES_MAX: usize = 512; // of one anyOf, oneOf or allOf
const REFERENCES_MAX: usize = 2_000; // to different places
const COUNT_MAX: u64 = 100_000; // of items, characters, properties
const DEPTH_MAX: usize = 64;

#[derive(Clone, Copy, Default)]
pub struct Options {
    /// Objects that say nothing of further properties have none.
    pub no_additional_properties: bool,
}

/// Rewrites what changes nothing, then checks. The message names the keyword and its place.
pub fn prepare(schema: &mut Value, options: Options) -> Result<(), String> {
    simplify(schema, options, 0)?;
    let mut walk = Walk {
        root: schema,
        seen: HashSet::new(),
        targets: HashSet::new(),
        pending: Vec::new(),
        values: 0,
        patterns: 0,
    };
    walk.schema(schema, "#", 0)?;
    while let Some((target, place)) = walk.pending.pop() {
        walk.schema(target, &place, 0)?;
    }
    Ok(())
}

fn is_anything(value: &Value) -> bool {
    *value == Value::Bool(true) || value.as_object().is_some_and(Map::is_empty)
}

fn simplify(schema: &mut Value, options: Options, depth: usize) -> Result<(), String> {
    if depth > DEPTH_MAX {
        return Err(format!("the schema is nested deeper than {DEPTH_MAX}"));
    }
    let Some(map) = schema.as_object_mut() else {
        return Ok(());
    };
    remove_idle(map);
    if options.no_additional_properties
        && (map.contains_key("properties") || map.get("type").is_some_and(|t| t == "object"))
        && !map.contains_key("additionalProperties")
    {
        map.insert("additionalProperties".into(), Value::Bool(false));
    }
    let format = map.get("format").and_then(Value::as_str);
    if let Some(rule) = format.and_then(format_rule) {
        map.shift_remove("format");
        match map.get_mut("allOf") {
            Some(Value::Array(rules)) => rules.push(rule),
            Some(_) => return Err("allOf must be an array".into()),
            None => drop(map.insert("allOf".into(), Value::Array(vec![rule]))),
        }
    }
    for (key, value) in map.iter_mut() {
        let key = key.as_str();
        match value {
            Value::Array(list) if LISTED.contains(&key) => {
                for each in list {
                    simplify(each, options, depth + 1)?;
                }
            }
            Value::Object(named) if NAMED.contains(&key) => {
                for each in named.values_mut() {
                    simplify(each, options, depth + 1)?;
                }
            }
            Value::Object(_) if ONE.contains(&key) => simplify(value, options, depth + 1)?,
            _ => {}
        }
    }
    Ok(())
}

/// Keywords that have no effect as they stand here.
fn remove_idle(map: &mut Map<String, Value>) {
    if !map.contains_key("if") {
        map.shift_remove("then");
        map.shift_remove("else");
    } else if !map.contains_key("then") && !map.contains_key("else") {
        map.shift_remove("if");
    }
    if !map.contains_key("contains") {
        map.shift_remove("minContains");
        map.shift_remove("maxContains");
    }
    let idle = |key: &str, value: &Value| match key {
        "uniqueItems" | "not" => *value == Value::Bool(false),
        "dependencies" | "dependentRequired" | "dependentSchemas" => {
            value.as_object().is_some_and(Map::is_empty)
        }
        "propertyNames" | "unevaluatedItems" | "unevaluatedProperties" => is_anything(value),
        _ => false,
    };
    map.retain(|key, value| !idle(key, value));
}

struct Walk<'a> {
    root: &'a Value,
    seen: HashSet<*const Value>,
    targets: HashSet<*const Value>,
    pending: Vec<(&'a Value, String)>, // targets of references
    values: usize,
    patterns: usize,
}

impl<'a> Walk<'a> {
    fn schema(&mut self, schema: &'a Value, place: &str, depth: usize) -> Result<(), String> {
        if depth > DEPTH_MAX {
            return Err(format!("the schema is nested deeper than {DEPTH_MAX}"));
        }
        if !self.seen.insert(std::ptr::from_ref(schema)) {
            return Ok(());
        }
        if self.seen.len() > SCHEMAS_MAX {
            return Err(format!("the schema has more than {SCHEMAS_MAX} parts"));
        }
        let map = match schema {
            Value::Bool(_) => return Ok(()),
            Value::Object(map) => map,
            _ => return Err(format!("{place} must be an object or a boolean")),
        };
        for (key, value) in map {
            self.keyword(key, value, map, place)?;
        }
        check_count_of_properties(map, place)?;
        for (key, value) in map {
            self.children(key, value, place, depth)?;
        }
        Ok(())
    }

    fn keyword(
        &mut self,
        key: &str,
        value: &'a Value,
        map: &Map<String, Value>,
        place: &str,
    ) -> Result<(), String> {
        if UNENFORCED.contains(&key) {
            return Err(format!(
                "the schema keyword {key:?} (at {place}) is not supported: it could not be enforced"
            ));
        }
        match key {
            "x-guidance" => Err(format!(
                "the schema keyword \"x-guidance\" (at {place}) is not accepted"
            )),
            "$schema" => check_draft(value),
            "$ref" => self.reference(value, place),
            "const" => self.literal(value, place, 0),
            "enum" => self.literal(value, place, 0),
            "format" => check_format(value, map, place),
            "pattern" => self.pattern(value.as_str().unwrap_or_default(), place),
            "patternProperties" => self.pattern_properties(value, place),
            _ if NUMERIC.contains(&key) => match value {
                Value::Number(number) => check_number(number, place),
                _ => Ok(()),
            },
            _ => check_count(key, value, place),
        }
    }

    fn children(
        &mut self,
        key: &str,
        value: &'a Value,
        place: &str,
        depth: usize,
    ) -> Result<(), String> {
        match value {
            Value::Array(list) if LISTED.contains(&key) => {
                if list.len() > ALTERNATIVES_MAX {
                    return Err(format!(
                        "{key} at {place} has {} schemas, at most {ALTERNATIVES_MAX} are accepted",
                        list.len()
                    ));
                }
                for (index, each) in list.iter().enumerate() {
                    self.schema(each, &format!("{place}/{key}/{index}"), depth + 1)?;
                }
            }
            Value::Object(named) if NAMED.contains(&key) => {
                for (name, each) in named {
                    self.schema(each, &format!("{place}/{key}/{name:.64}"), depth + 1)?;
                }
            }
            _ if ONE.contains(&key) => {
                self.schema(value, &format!("{place}/{key}"), depth + 1)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// References may lead to places that are no schema otherwise; those are walked too.
    fn reference(&mut self, value: &'a Value, place: &str) -> Result<(), String> {
        let Some(reference) = value.as_str() else {
            return Err(format!("$ref at {place} must be a string"));
        };
        let Some(pointer) = reference.strip_prefix('#') else {
            return Ok(());
        };
        if pointer.is_empty() || pointer.starts_with('/') {
            // Escapes of URIs are left to llguidance, which refuses what it cannot find.
            if let Some(target) = self.root.pointer(pointer) {
                if self.targets.insert(std::ptr::from_ref(target)) {
                    self.pending.push((target, reference.to_string()));
                }
            }
            if self.targets.len() > REFERENCES_MAX {
                return Err(format!("$ref leads to more than {REFERENCES_MAX} places"));
            }
        }
        Ok(())
    }

    fn literal(&mut self, value: &Value, place: &str, depth: usize) -> Result<(), String> {
        self.values += 1;
        if self.values > VALUES_MAX {
            return Err(format!(
                "const and enum have more than {VALUES_MAX} values in all"
            ));
        }
        if depth > DEPTH_MAX {
            return Err(format!(
                "a value of const or enum at {place} is nested deeper than {DEPTH_MAX}"
            ));
        }
        match value {
            Value::Number(number) => check_number(number, place),
            Value::String(text) => check_text(text, place),
            Value::Array(list) => list
                .iter()
                .try_for_each(|each| self.literal(each, place, depth + 1)),
            Value::Object(map) => map.iter().try_for_each(|(key, each)| {
                check_text(key, place)?;
                self.literal(each, place, depth + 1)
            }),
            _ => Ok(()),
        }
    }

    fn pattern(&mut self, pattern: &str, place: &str) -> Result<(), String> {
        if pattern.contains(TIME) || pattern.contains(DATE) || pattern.contains(LABEL) {
            return Ok(()); // those of format_rule()
        }
        self.patterns += 1;
        if self.patterns > PATTERNS_MAX {
            return Err(format!(
                "the schema has more than {PATTERNS_MAX} regular expressions"
            ));
        }
        check_regex_end(pattern)?;
        if pattern.len() > PATTERN_BYTES_MAX {
            return Err(format!(
                "the regular expression at {place} is longer than {PATTERN_BYTES_MAX} bytes"
            ));
        }
        Ok(())
    }

    fn pattern_properties(&mut self, value: &Value, place: &str) -> Result<(), String> {
        let Some(map) = value.as_object() else {
            return Err(format!("patternProperties at {place} must be an object"));
        };
        if map.len() > PATTERN_PROPERTIES_MAX {
            return Err(format!(
                "patternProperties at {place} has more than {PATTERN_PROPERTIES_MAX} patterns"
            ));
        }
        map.keys().try_for_each(|key| self.pattern(key, place))
    }
}

/// A grammar cannot see that a key came twice: all but one of the keys it does not know beforehand
/// could be the same.
fn check_count_of_properties(map: &Map<String, Value>, place: &str) -> Result<(), String> {
    let Some(least) = map.get("minProperties").and_then(Value::as_u64) else {
        return Ok(());
    };
    let required: HashSet<&str> = map
        .get("required")
        .and_then(Value::as_array)
        .map(|list| list.iter().filter_map(Value::as_str).collect())
        .unwrap_or_default();
    if least > required.len() as u64 + 1 {
        return Err(format!(
            "the schema keyword \"minProperties\" (at {place}) is supported only up to one more \
             than there are required properties: beyond that it could not be enforced"
        ));
    }
    Ok(())
}

fn check_count(key: &str, value: &Value, place: &str) -> Result<(), String> {
    const COUNTS: [&str; 6] = [
        "maxItems",
        "maxLength",
        "maxProperties",
        "minItems",
        "minLength",
        "minProperties",
    ];
    if !COUNTS.contains(&key) {
        return Ok(());
    }
    match value.as_u64() {
        Some(count) if count <= COUNT_MAX => Ok(()),
        _ => Err(format!(
            "{key} at {place} must be an integer from 0 to {COUNT_MAX}"
        )),
    }
}

fn check_draft(value: &Value) -> Result<(), String> {
    let text = value.as_str().unwrap_or_default();
    let name = text
        .trim_end_matches('#')
        .trim_start_matches("https://")
        .trim_start_matches("http://");
    if DRAFTS.contains(&name) {
        return Ok(());
    }
    Err(format!(
        "the schema keyword \"$schema\" names {text:.80?}, which is no draft that is supported"
    ))
}

/// A format says something of strings only.
fn check_format(value: &Value, map: &Map<String, Value>, place: &str) -> Result<(), String> {
    let may_be_string = match map.get("type") {
        Some(Value::String(kind)) => kind == "string",
        Some(Value::Array(kinds)) => kinds.iter().any(|kind| kind == "string"),
        _ => true,
    };
    let name = value.as_str().unwrap_or_default();
    if may_be_string && !FORMATS.contains(&name) {
        return Err(format!(
            "the schema keyword \"format\" (at {place}) has the value {name:.40?}, which could not \
             be enforced; supported are {}",
            FORMATS.join(", ")
        ));
    }
    Ok(())
}

/// llguidance loses U+0000 in the middle of a string.
fn check_text(text: &str, place: &str) -> Result<(), String> {
    if text.contains('\0') {
        return Err(format!(
            "a string of const or enum at {place} contains the character U+0000"
        ));
    }
    Ok(())
}

/// llguidance computes in doubles. Integers they cannot hold would silently become others.
fn check_number(number: &Number, place: &str) -> Result<(), String> {
    let text = number.as_str();
    let inexact = |_| format!("the number {text:.40} at {place} is out of range");
    let double: f64 = text.parse().map_err(|_| inexact(()))?;
    if !double.is_finite() {
        return Err(inexact(()));
    }
    let is_integer = !text.contains(['.', 'e', 'E']);
    if is_integer
        && !text
            .parse::<i64>()
            .is_ok_and(|i| i.unsigned_abs() <= 1 << 53)
    {
        return Err(inexact(()));
    }
    if !is_integer && double.abs() > 1e15 {
        return Err(inexact(()));
    }
    Ok(())
}

#[cfg(test)]
#[path = "schema_tests.rs"]
mod tests;
