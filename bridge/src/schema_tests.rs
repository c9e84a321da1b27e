//! Tests of schema.rs.

use super::*;
use serde_json::json;

fn check(mut schema: Value) -> Result<Value, String> {
    prepare(&mut schema, Options::default()).map(|()| schema)
}

#[test]
fn every_keyword_that_is_not_enforced_is_named() {
    for keyword in UNENFORCED {
        let mut schema = json!({"if": {"const": 1}, "then": true, "contains": {"const": 1}});
        schema[keyword] = json!({"type": "string"});
        let nested = json!({"properties": {"a": {"anyOf": [true, schema]}}});
        let why = check(nested).expect_err(keyword);
        assert!(why.contains("#/properties/a/anyOf/1"), "{why}");
        let alone = json!({"items": {keyword: {"a": ["b"]}}});
        if let Err(why) = check(alone) {
            assert!(why.contains(&format!("{keyword:?}")), "{keyword}: {why}");
        } else {
            assert!(["then", "else", "if", "minContains", "maxContains"].contains(&keyword));
        }
    }
}

#[test]
fn what_makes_no_difference_is_taken_out() {
    let schema = json!({"uniqueItems": false, "not": false, "then": {"const": 1},
        "propertyNames": {}, "unevaluatedProperties": true, "dependentRequired": {},
        "minContains": 2, "type": "object"});
    assert_eq!(check(schema), Ok(json!({"type": "object"})));
}

#[test]
fn property_names_and_values_are_no_keywords() {
    let schema = json!({"properties": {"not": {"type": "string"}, "if": true},
        "enum": [{"not": 1}], "default": {"uniqueItems": true}, "examples": [{"contains": 1}]});
    assert!(check(schema).is_ok());
}

#[test]
fn references_lead_the_walk_to_any_place() {
    let schema = json!({"$ref": "#/x/y", "x": {"y": {"not": {}}}});
    assert!(check(schema).is_err_and(|why| why.contains("#/x/y")));
    assert!(check(json!({"$ref": "#"})).is_ok());
}

#[test]
fn numbers_must_fit_a_double() {
    for text in ["9007199254740993", "1e400", "-18446744073709551615", "1e16"] {
        let schema: Value =
            serde_json::from_str(&format!(r#"{{"enum":[1,[{text}]]}}"#)).expect("the text is JSON");
        assert!(check(schema).is_err(), "{text}");
    }
    assert!(check(json!({"minimum": -9007199254740992i64, "multipleOf": 0.01})).is_ok());
}

#[test]
fn duplicate_keys_cannot_satisfy_a_count() {
    assert!(check(json!({"minProperties": 2})).is_err());
    assert!(check(json!({"minProperties": 2, "required": ["a"]})).is_ok());
}

#[test]
fn formats_are_enforced_or_refused_where_they_apply() {
    assert!(check(json!({"format": "iri"})).is_err());
    assert!(check(json!({"type": "string", "format": "date"})).is_ok());
    assert!(check(json!({"type": "integer", "format": "int32"})).is_ok());
}

#[test]
fn sizes_are_bounded() {
    let list: Vec<Value> = (0..600).map(|i| json!({"const": i})).collect();
    assert!(check(json!({"anyOf": list})).is_err());
    assert!(check(json!({"pattern": "a".repeat(5000)})).is_err());
    assert!(check(json!({"pattern": r"a\"})).is_err());
    assert!(check(json!({"patternProperties": {r"a\\\": {}}})).is_err());
    assert!(check(json!({"pattern": r"a\\"})).is_ok());
    assert!(check(json!({"minItems": 1_000_000})).is_err());
    assert!(check(json!({"enum": vec![1; 30_000]})).is_err());
}

#[test]
fn objects_can_be_closed() {
    let mut schema = json!({"properties": {"a": {"type": "object"}, "b": {"type": "array"}}});
    let options = Options {
        no_additional_properties: true,
    };
    assert!(prepare(&mut schema, options).is_ok());
    assert_eq!(schema["additionalProperties"], json!(false));
    assert_eq!(
        schema["properties"]["a"]["additionalProperties"],
        json!(false)
    );
    assert!(schema["properties"]["b"]
        .get("additionalProperties")
        .is_none());
}
