//! The Jinja environment of Hugging Face's apply_chat_template: trimmed blocks, loop controls,
//! `tojson` as json.dumps, raise_exception, and Python's methods. What a template may spend is
//! bounded by fuel, which also pays for every byte and item it makes.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{from_args, Kwargs, Rest, ValueKind, ValueOrKwargs};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State, UndefinedBehavior, Value};

use crate::dumps::{dumps, Style};
use crate::sentry::Known;
use crate::{json, python, sentry};

/// A macro call costs 4 of these, so macros may nest 50 deep.
const RECURSION_MAX: usize = 200;

fn invalid(why: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, why)
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(invalid(message))
}

fn tojson(state: &State, value: &Value, arguments: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let arguments = arguments.into_values();
    let (positional, kwargs): (&[Value], Kwargs) = from_args(&arguments)?;
    let style = Style::from_arguments(positional, &kwargs)?;
    dumps(state, value, &style).map(Value::from)
}

fn from_json(state: &State, text: &str) -> Result<Value, Error> {
    state.consume_fuel(text.len() as u64 / 16)?;
    let parsed = json::parse(text, "the argument of from_json").map_err(invalid)?;
    json::to_value(&parsed, &mut Known::default()).map_err(invalid)
}

fn trim(text: &str, characters: Option<&str>) -> String {
    match characters {
        None => text.trim_matches(python::is_space).to_string(),
        Some(set) => text.trim_matches(|c| set.contains(c)).to_string(),
    }
}

/// Python cannot iterate None, and Jinja calls whatever has a length and items a sequence.
fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

fn is_sequence(value: &Value) -> bool {
    use ValueKind::{Map, Seq, String, Undefined};
    matches!(value.kind(), String | Seq | Map | Undefined)
}

pub fn syntax() -> SyntaxConfig {
    SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .keep_trailing_newline(false)
        .build()
        .expect("the default delimiters are distinct")
}

pub fn make(steps_max: u64) -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_recursion_limit(RECURSION_MAX);
    environment.set_fuel(Some(steps_max));
    environment.set_unknown_method_callback(python::call_method);
    environment.add_function("raise_exception", raise_exception);
    environment.add_filter("tojson", tojson);
    environment.add_filter("from_json", from_json);
    environment.add_filter("trim", trim);
    environment.add_test("iterable", is_iterable);
    environment.add_test("sequence", is_sequence);
    sentry::install(&mut environment);
    environment
}
