//! Python's json.dumps, as Hugging Face's `tojson` filter calls it: nothing escaped that JSON does
//! not demand (unless `ensure_ascii`), ", " and ": " between items, floats as repr() prints them.
//! A value may be shared many times over, so its text can be far larger than it: writing is
//! charged as fuel while it happens, and stops with it.

use std::fmt::Write;

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

const DEPTH_MAX: usize = 200;
const BYTES_PER_CHARGE: usize = 1024;
const STEPS_PER_CHARGE: u64 = 64;

/// The keyword arguments of json.dumps that templates may use.
pub struct Style {
    ensure_ascii: bool,
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    sort_keys: bool,
}

impl Style {
    pub fn python() -> Style {
        Style {
            ensure_ascii: false,
            indent: None,
            item_separator: ", ".into(),
            key_separator: ": ".into(),
            sort_keys: false,
        }
    }

    pub fn from_arguments(positional: &[Value], kwargs: &Kwargs) -> Result<Style, Error> {
        let mut style = Style::python();
        let argument = |index: usize, name: &str| -> Result<Option<Value>, Error> {
            let value = match positional.get(index) {
                Some(value) => Some(value.clone()),
                None => kwargs.get(name)?,
            };
            Ok(value.filter(|v| !v.is_none()))
        };
        style.ensure_ascii = argument(0, "ensure_ascii")?.is_some_and(|v| v.is_true());
        if let Some(indent) = argument(1, "indent")? {
            style.indent = Some(indent_text(&indent)?);
            style.item_separator = ",".into();
        }
        if let Some(separators) = argument(2, "separators")? {
            let pair: Vec<Value> = separators.try_iter()?.take(3).collect();
            match pair.as_slice() {
                [item, key] => {
                    style.item_separator = item.to_string();
                    style.key_separator = key.to_string();
                }
                _ => return Err(invalid("separators must be a pair")),
            }
        }
        style.sort_keys = argument(3, "sort_keys")?.is_some_and(|v| v.is_true());
        kwargs.assert_all_used()?;
        Ok(style)
    }
}

fn indent_text(indent: &Value) -> Result<String, Error> {
    if let Some(text) = indent.as_str() {
        return Ok(text.chars().take(64).collect());
    }
    let width = indent
        .as_i64()
        .ok_or_else(|| invalid("indent must be a number or a string"))?;
    Ok(" ".repeat(width.clamp(0, 64) as usize))
}

fn invalid(why: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, why)
}

struct Writer<'a, 'b, 'c> {
    out: String,
    style: &'a Style,
    state: &'a State<'b, 'c>,
    charged: usize,
}

pub fn dumps(state: &State, value: &Value, style: &Style) -> Result<String, Error> {
    let mut writer = Writer {
        out: String::new(),
        style,
        state,
        charged: 0,
    };
    writer.value(value, 0)?;
    Ok(writer.out)
}

impl Writer<'_, '_, '_> {
    fn charge(&mut self) -> Result<(), Error> {
        while self.out.len() - self.charged >= BYTES_PER_CHARGE {
            self.state.consume_fuel(STEPS_PER_CHARGE)?;
            self.charged += BYTES_PER_CHARGE;
        }
        Ok(())
    }

    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > DEPTH_MAX {
            return Err(invalid("tojson: the value is nested too deeply"));
        }
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self
                .out
                .push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.number(value)?,
            ValueKind::String => self.string(value.as_str().unwrap_or_default())?,
            ValueKind::Seq | ValueKind::Iterable => self.array(value, depth)?,
            ValueKind::Map => self.object(value, depth)?,
            kind => {
                return Err(invalid(format!(
                    "Object of type {kind} is not JSON serializable"
                )))
            }
        }
        self.charge()
    }

    fn number(&mut self, value: &Value) -> Result<(), Error> {
        if value.is_integer() {
            write!(self.out, "{value}").map_err(|_| Error::from(ErrorKind::WriteFailure))
        } else {
            self.out
                .push_str(&float_repr(f64::try_from(value.clone())?));
            Ok(())
        }
    }

    fn string(&mut self, text: &str) -> Result<(), Error> {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if u32::from(c) < 0x20 => self.escape(u32::from(c) as u16),
                c if self.style.ensure_ascii && u32::from(c) > 0x7e => {
                    let mut units = [0u16; 2];
                    for unit in c.encode_utf16(&mut units) {
                        self.escape(*unit);
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
        self.charge()
    }

    fn escape(&mut self, unit: u16) {
        // Writing to a String cannot fail.
        let _ = write!(self.out, "\\u{unit:04x}");
    }

    fn line(&mut self, depth: usize) {
        if let Some(indent) = &self.style.indent {
            self.out.push('\n');
            for _ in 0..depth {
                self.out.push_str(indent);
            }
        }
    }

    fn array(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.out.push('[');
        let mut empty = true;
        for item in value.try_iter()?.checked() {
            if !empty {
                self.out.push_str(&self.style.item_separator);
            }
            empty = false;
            self.line(depth + 1);
            self.value(&item?, depth + 1)?;
        }
        if !empty {
            self.line(depth);
        }
        self.out.push(']');
        Ok(())
    }

    fn object(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        let keys: Result<Vec<Value>, Error> = value.try_iter()?.checked().collect();
        let mut keys = keys?;
        if self.style.sort_keys {
            keys.sort();
        }
        self.out.push('{');
        for (index, key) in keys.iter().enumerate() {
            if index > 0 {
                self.out.push_str(&self.style.item_separator);
            }
            self.line(depth + 1);
            self.key(key)?;
            self.out.push_str(&self.style.key_separator);
            self.value(&value.get_item(key)?, depth + 1)?;
        }
        if !keys.is_empty() {
            self.line(depth);
        }
        self.out.push('}');
        Ok(())
    }

    /// JSON knows string keys only; Python spells the other simple ones out.
    fn key(&mut self, key: &Value) -> Result<(), Error> {
        match key.kind() {
            ValueKind::String => self.string(key.as_str().unwrap_or_default()),
            ValueKind::None | ValueKind::Bool | ValueKind::Number => {
                self.out.push('"');
                self.value(key, 0)?;
                self.out.push('"');
                Ok(())
            }
            kind => Err(invalid(format!(
                "keys must be str, int, float, bool or None, not {kind}"
            ))),
        }
    }
}

/// repr() of a Python float: the shortest digits that read back, with an exponent below 1e-4 and
/// from 1e16 on (CPython, Python/pystrtod.c, format code 'r').
pub fn float_repr(value: f64) -> String {
    if value.is_nan() {
        return "NaN".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "Infinity" } else { "-Infinity" }.into();
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let plain = format!("{value}");
        return if plain.contains('.') {
            plain
        } else {
            plain + ".0"
        };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

#[cfg(test)]
mod tests {
    use super::float_repr;

    #[test]
    fn floats_print_as_python_prints_them() {
        for (value, text) in [
            (2.5, "2.5"),
            (1.0, "1.0"),
            (-0.0, "-0.0"),
            (0.1, "0.1"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (5e-324, "5e-324"),
            (123456789.123, "123456789.123"),
        ] {
            assert_eq!(float_repr(value), text);
        }
    }
}
