//! JSON text to template values. Objects keep their order, integers their exactness; depth is
//! bounded by serde_json (128) and so is everything built here.

use minijinja::Value;
use serde_json::{Number, Value as Json};

use crate::sentry::Known;

pub fn parse(text: &str, what: &str) -> Result<Json, String> {
    serde_json::from_str(text).map_err(|e| format!("{what} is not valid JSON: {e}"))
}

/// Python reads an integer of any size and calls everything with a point or an exponent a float.
fn number(number: &Number) -> Result<Value, String> {
    let text = number.as_str();
    if let Some(value) = number.as_i64() {
        return Ok(Value::from(value));
    }
    if !text.contains(['.', 'e', 'E']) {
        if let Ok(value) = text.parse::<i128>() {
            return Ok(Value::from(value));
        }
        return Err(format!("the integer {text:.40} is too large"));
    }
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() => Ok(Value::from(value)),
        _ => Err(format!("the number {text:.40} is too large")),
    }
}

/// `known` learns every container on the way up.
pub fn to_value(json: &Json, known: &mut Known) -> Result<Value, String> {
    let value = match json {
        Json::Null => Value::from(()),
        Json::Bool(value) => Value::from(*value),
        Json::Number(value) => number(value)?,
        Json::String(value) => Value::from(value.as_str()),
        Json::Array(items) => {
            let items: Result<Vec<Value>, String> =
                items.iter().map(|item| to_value(item, known)).collect();
            Value::from(items?)
        }
        Json::Object(map) => {
            let pairs: Result<Vec<(Value, Value)>, String> = map
                .iter()
                .map(|(key, value)| Ok((Value::from(key.as_str()), to_value(value, known)?)))
                .collect();
            Value::from_pairs(pairs?)
        }
    };
    if value.as_object().is_some() {
        known.add(&value).map_err(|e| e.to_string())?;
    }
    Ok(value)
}
