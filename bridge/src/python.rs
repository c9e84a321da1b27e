//! What templates expect of Python: methods of str, dict and list where minijinja's own set is
//! missing or looser than Python's, and strftime.

use std::ffi::CString;

use minijinja::value::{from_args, Kwargs, Tuple, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat;

use crate::sentry;

const FORMAT_BYTES_MAX: usize = 256;
const FORMAT_DIGITS_MAX: u32 = 4;
const TIME_BYTES_MAX: usize = 1024;

fn invalid(why: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, why)
}

/// str.isspace(): Unicode's White_Space and the four ASCII separators.
pub fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

pub fn call_method(
    state: &mut State,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    charge(state, value, method, args)?;
    let own = match value.kind() {
        ValueKind::String => string_method(value.as_str().unwrap_or_default(), method, args)?,
        ValueKind::Map | ValueKind::Seq if method == "copy" => Some(value.clone()),
        ValueKind::Seq if method == "index" => Some(list_index(value, args)?),
        _ => None,
    };
    match own {
        Some(result) => Ok(result),
        None => pycompat::unknown_method_callback(state, value, method, args),
    }
}

/// Methods read all of a string; `format` can write its arguments many times over, and two list
/// methods compare.
fn charge(state: &State, value: &Value, method: &str, args: &[Value]) -> Result<(), Error> {
    match (value.as_str(), method) {
        (Some(text), "format") => charge_format(state, text, args),
        (Some(_), _) => sentry::charge_for(state, value, 1),
        (None, "count" | "index") if value.kind() == ValueKind::Seq => {
            sentry::charge_for(state, value, 1)
        }
        (None, "get") => args
            .first()
            .map_or(Ok(()), |key| sentry::charge_for(state, key, 1)),
        _ => Ok(()),
    }
}

fn charge_format(state: &State, format: &str, args: &[Value]) -> Result<(), Error> {
    let mut digits = 0;
    for c in format.chars() {
        digits = if c.is_ascii_digit() { digits + 1 } else { 0 };
        if digits > FORMAT_DIGITS_MAX {
            return Err(invalid("str.format: a width is too large"));
        }
    }
    let fields = format.matches('{').count();
    let width_max = 10usize.pow(FORMAT_DIGITS_MAX);
    state.consume_fuel(fields.saturating_mul(width_max / 64 + 1) as u64)?;
    for arg in args {
        sentry::charge_for(state, arg, fields)?;
    }
    Ok(())
}

fn list_index(list: &Value, args: &[Value]) -> Result<Value, Error> {
    let (what,): (&Value,) = from_args(args)?;
    for (index, item) in list.try_iter()?.checked().enumerate() {
        if item? == *what {
            return Ok(Value::from(index));
        }
    }
    Err(invalid("list.index: the value is not in the list"))
}

fn string_method(text: &str, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    Ok(Some(match method {
        "strip" => strip(text, args, true, true)?,
        "lstrip" => strip(text, args, true, false)?,
        "rstrip" => strip(text, args, false, true)?,
        "split" => split(text, args, false)?,
        "rsplit" => split(text, args, true)?,
        "partition" => partition(text, args, false)?,
        "rpartition" => partition(text, args, true)?,
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Value::from(text.strip_prefix(prefix).unwrap_or(text))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Value::from(text.strip_suffix(suffix).unwrap_or(text))
        }
        "join" => {
            // Python joins strings only. That also keeps nested lists out, whose text can be far
            // larger than they are.
            let (items,): (&Value,) = from_args(args)?;
            for item in items.try_iter()?.checked() {
                let item = item?;
                if item.as_str().is_none() {
                    return Err(invalid(format!(
                        "str.join: expected str items, found {}",
                        item.kind()
                    )));
                }
            }
            return Ok(None);
        }
        _ => return Ok(None),
    }))
}

fn strip(text: &str, args: &[Value], start: bool, end: bool) -> Result<Value, Error> {
    let (chars,): (Option<Value>,) = from_args(args)?;
    let chars = chars.filter(|v| !v.is_none());
    let set: Option<Vec<char>> = match &chars {
        None => None,
        Some(value) => Some(
            value
                .as_str()
                .ok_or_else(|| invalid("strip: expected a string"))?
                .chars()
                .collect(),
        ),
    };
    let matches = |c: char| set.as_ref().map_or_else(|| is_space(c), |s| s.contains(&c));
    let mut result = text;
    if start {
        result = result.trim_start_matches(matches);
    }
    if end {
        result = result.trim_end_matches(matches);
    }
    Ok(Value::from(result))
}

/// Pieces of `text` between runs of white space, at most `max` cuts, as str.split() makes them.
fn split_space(text: &str, max: usize, from_right: bool) -> Vec<&str> {
    let mut pieces = Vec::new();
    let mut rest = text;
    loop {
        rest = if from_right {
            rest.trim_end_matches(is_space)
        } else {
            rest.trim_start_matches(is_space)
        };
        if rest.is_empty() {
            break;
        }
        let cut = if pieces.len() == max {
            None
        } else if from_right {
            rest.rfind(is_space)
        } else {
            rest.find(is_space)
        };
        match cut {
            None => {
                pieces.push(rest);
                break;
            }
            Some(at) if from_right => {
                let next = at + rest[at..].chars().next().map_or(1, char::len_utf8);
                pieces.push(&rest[next..]);
                rest = &rest[..at];
            }
            Some(at) => {
                pieces.push(&rest[..at]);
                rest = &rest[at..];
            }
        }
    }
    if from_right {
        pieces.reverse();
    }
    pieces
}

fn split(text: &str, args: &[Value], from_right: bool) -> Result<Value, Error> {
    let (positional, kwargs): (&[Value], Kwargs) = from_args(args)?;
    let argument = |index: usize, name: &str| -> Result<Option<Value>, Error> {
        match positional.get(index) {
            Some(value) => Ok(Some(value.clone())),
            None => kwargs.get(name),
        }
    };
    let separator = argument(0, "sep")?.filter(|v| !v.is_none());
    let max = match argument(1, "maxsplit")? {
        None => usize::MAX,
        Some(value) => value
            .as_i64()
            .ok_or_else(|| invalid("split: maxsplit must be an integer"))
            .map(|max| usize::try_from(max).unwrap_or(usize::MAX))?,
    };
    kwargs.assert_all_used()?;
    let Some(separator) = separator else {
        return Ok(split_space(text, max, from_right)
            .into_iter()
            .map(Value::from)
            .collect());
    };
    let separator = separator
        .as_str()
        .ok_or_else(|| invalid("split: the separator must be a string"))?;
    if separator.is_empty() {
        return Err(invalid("split: empty separator"));
    }
    let count = max.saturating_add(1);
    let mut pieces: Vec<Value> = if from_right {
        text.rsplitn(count, separator).map(Value::from).collect()
    } else {
        text.splitn(count, separator).map(Value::from).collect()
    };
    if from_right {
        pieces.reverse();
    }
    Ok(Value::from(pieces))
}

fn partition(text: &str, args: &[Value], from_right: bool) -> Result<Value, Error> {
    let (separator,): (&str,) = from_args(args)?;
    if separator.is_empty() {
        return Err(invalid("partition: empty separator"));
    }
    let cut = if from_right {
        text.rsplit_once(separator)
    } else {
        text.split_once(separator)
    };
    let parts = match cut {
        Some((before, after)) => [before, separator, after],
        None if from_right => ["", "", text],
        None => [text, "", ""],
    };
    Ok(Value::from(Tuple::from(parts.map(Value::from))))
}

/// C's strftime in local time, which is what Python's calls.
pub fn strftime(format: &str, now: i64) -> Result<String, Error> {
    if format.len() > FORMAT_BYTES_MAX {
        return Err(invalid("strftime_now: the format is too long"));
    }
    if format.is_empty() {
        return Ok(String::new());
    }
    let format =
        CString::new(format).map_err(|_| invalid("strftime_now: the format holds a NUL"))?;
    let mut buffer = vec![0u8; TIME_BYTES_MAX];
    // SAFETY: localtime_r fills `parts`, or fails; strftime writes at most buffer.len() bytes.
    let size = unsafe {
        let mut parts: libc::tm = std::mem::zeroed();
        let seconds = now as libc::time_t;
        if libc::localtime_r(&seconds, &mut parts).is_null() {
            return Err(invalid("strftime_now: the clock is out of range"));
        }
        libc::strftime(
            buffer.as_mut_ptr().cast(),
            buffer.len(),
            format.as_ptr(),
            &parts,
        )
    };
    buffer.truncate(size);
    String::from_utf8(buffer).map_err(|_| invalid("strftime_now: the result is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn split_on_white_space_is_pythons() {
        assert_eq!(split_space("  a  b c ", usize::MAX, false), ["a", "b", "c"]);
        assert_eq!(split_space("  a  b c ", 1, false), ["a", "b c "]);
        assert_eq!(split_space("  a  b c ", 1, true), ["  a  b", "c"]);
        assert_eq!(split_space("  a b ", 0, true), ["  a b"]);
        assert!(split_space(" \u{1c}\u{85} ", usize::MAX, false).is_empty());
        assert_eq!(split_space("  a b ", 0, false), ["a b "]);
    }
}
