//! What fuel alone does not bound. A template can build values far larger than the memory they
//! take, since lists share their items: sixty times `x = [x, x]` is tiny to hold and endless to
//! print or compare, and a million times `x = [x]` overflows the stack when it is dropped. So
//! every operation that makes a container is followed by a look at the result (its depth and its
//! unfolded size are bounded), and every operation that walks one is charged for the walk first.
//! rewrite.rs puts these calls into the compiled template, under names no template can spell.

use std::collections::HashMap;
use std::sync::Arc;

use indexmap::IndexMap;
use minijinja::value::{Object, ObjectRepr, Rest, Tuple, ValueKind, ValueOrKwargs};
use minijinja::{filters, Environment, Error, ErrorKind, State, Value};

/// A filter that templates could spell, but have no use for.
pub const SAME: &str = "kun_same";
pub const GUARD: &str = "\0guard";
pub const GUARD_STORED: &str = "\0guard_stored";
pub const CHARGE: &str = "\0charge";
pub const ITEM: &str = "\0item";
pub const SLICE: &str = "\0slice";
pub const MAP: &str = "\0map";
/// The variable that holds the Known of a rendering.
pub const KNOWN: &str = "\0known";

/// Requests reach 128, the limit of the JSON parser.
const DEPTH_MAX: usize = 200;
/// Of a value with everything it shares counted as often as it appears.
const BYTES_MAX: usize = 64 << 20;
const BYTES_PER_NODE: usize = 32;
const NODES_PER_STEP: usize = 8;
const BYTES_PER_STEP: usize = 64;

fn invalid(why: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, why)
}

/// A value with all it contains.
#[derive(Clone, Copy, Debug, Default)]
pub struct Weight {
    nodes: usize,
    text_bytes: usize,
    depth: usize, // of containers below this one
}

/// The weights of the containers a rendering starts with, by address, so that a list of messages
/// need not be walked to its leaves each time it is sliced or added to. They live as long as the
/// rendering's variables, so their addresses stay theirs.
#[derive(Debug, Default)]
pub struct Known(HashMap<usize, Weight>);

impl Object for Known {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }
}

fn address(value: &Value) -> Option<usize> {
    if let Some(list) = value.downcast_object_ref::<Vec<Value>>() {
        return Some(std::ptr::from_ref(list) as usize);
    }
    let map = value.downcast_object_ref::<IndexMap<Value, Value>>()?;
    Some(std::ptr::from_ref(map) as usize)
}

impl Known {
    /// Learns `value`, all of whose containers it already knows.
    pub fn add(&mut self, value: &Value) -> Result<(), Error> {
        let mut meter = Meter::new(Some(self));
        meter.walk(value, 0)?;
        let weight = meter.weight;
        if let Some(address) = address(value) {
            self.0.insert(address, weight);
        }
        Ok(())
    }
}

fn known(state: &State) -> Option<Value> {
    state.lookup(KNOWN)
}

struct Meter<'a> {
    weight: Weight,
    known: Option<&'a Known>,
    refuse_namespaces: bool,
}

impl<'a> Meter<'a> {
    fn new(known: Option<&'a Known>) -> Meter<'a> {
        Meter {
            weight: Weight::default(),
            known,
            refuse_namespaces: false,
        }
    }

    fn count(&mut self, nodes: usize, text_bytes: usize) -> Result<(), Error> {
        self.weight.nodes += nodes;
        self.weight.text_bytes += text_bytes;
        if self.weight.nodes * BYTES_PER_NODE + self.weight.text_bytes > BYTES_MAX {
            return Err(invalid("a value is too large"));
        }
        Ok(())
    }

    fn deepen(&mut self, depth: usize) -> Result<(), Error> {
        if depth > DEPTH_MAX {
            return Err(invalid("a value is nested too deeply"));
        }
        self.weight.depth = self.weight.depth.max(depth);
        Ok(())
    }

    fn walk(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        let Some(object) = value.as_object() else {
            return self.count(1, value.as_str().map_or(0, str::len));
        };
        let weight = address(value).and_then(|at| self.known.and_then(|known| known.0.get(&at)));
        if let Some(weight) = weight {
            self.deepen(depth + weight.depth)?;
            return self.count(weight.nodes, weight.text_bytes);
        }
        self.count(1, 0)?;
        self.deepen(depth)?;
        if self.refuse_namespaces && is_namespace(value) {
            return Err(invalid("a namespace cannot hold a namespace"));
        }
        match object.repr() {
            ObjectRepr::Map => {
                for (key, item) in object.try_iter_pairs().into_iter().flatten() {
                    self.walk(&key, depth + 1)?;
                    self.walk(&item, depth + 1)?;
                }
            }
            ObjectRepr::Seq | ObjectRepr::Iterable => {
                for item in object.try_iter().into_iter().flatten() {
                    self.walk(&item, depth + 1)?;
                }
            }
            _ => {}
        }
        Ok(())
    }
}

fn weigh(state: &State, value: &Value, refuse_namespaces: bool) -> Result<Weight, Error> {
    let known = known(state);
    let known = known.as_ref().and_then(Value::downcast_object_ref);
    let mut meter = Meter {
        refuse_namespaces,
        ..Meter::new(known)
    };
    meter.walk(value, 0)?;
    Ok(meter.weight)
}

/// The engine's namespace type is private; it is the only one that can change once made, and so
/// the only one that can come to contain itself.
fn is_namespace(value: &Value) -> bool {
    value
        .as_object()
        .is_some_and(|object| object.type_name().ends_with("::Namespace"))
}

/// Lazy lists and dicts are made plain ones: a chain of them is as deep as it is long, and nothing
/// shows it.
fn materialized(value: Value) -> Result<Value, Error> {
    let Some(object) = value.as_object() else {
        return Ok(value);
    };
    if address(&value).is_some() || value.is_tuple() || value.is_kwargs() {
        return Ok(value);
    }
    let mut meter = Meter::new(None);
    match object.repr() {
        ObjectRepr::Seq | ObjectRepr::Iterable => {
            let mut items = Vec::new();
            for item in value.try_iter()?.checked() {
                meter.count(1, 0)?;
                items.push(item?);
            }
            Ok(Value::from(items))
        }
        ObjectRepr::Map if !is_namespace(&value) => {
            let mut pairs = Vec::new();
            for pair in object.try_iter_pairs().into_iter().flatten() {
                meter.count(2, 0)?;
                pairs.push(pair);
            }
            Ok(Value::from_pairs(pairs))
        }
        _ => Ok(value),
    }
}

/// The value itself, if it is neither too deep nor too large.
fn guard(state: &State, value: Value) -> Result<Value, Error> {
    if value.as_object().is_none() {
        return Ok(value);
    }
    let value = materialized(value)?;
    let weight = weigh(state, &value, false)?;
    state.consume_fuel((weight.nodes / NODES_PER_STEP) as u64)?;
    Ok(value)
}

/// As guard, before the value goes into a namespace.
fn guard_stored(state: &State, value: Value) -> Result<Value, Error> {
    if value.as_object().is_some() {
        weigh(state, &value, true)?;
    }
    Ok(value)
}

/// A constant was computed while compiling, with nothing to pay with.
pub fn check_constant(value: &Value) -> Result<(), Error> {
    Meter::new(None).walk(value, 0)
}

/// Pays for reading all of a value `times` times.
pub fn charge_for(state: &State, value: &Value, times: usize) -> Result<(), Error> {
    let (nodes, text_bytes) = match value.as_str() {
        Some(text) => (1, text.len()),
        None if value.as_object().is_none() => (1, 0),
        None => {
            let weight = weigh(state, value, false)?;
            (weight.nodes, weight.text_bytes)
        }
    };
    let steps = nodes / NODES_PER_STEP + text_bytes / BYTES_PER_STEP;
    state.consume_fuel((steps as u64).saturating_mul(times as u64))
}

/// value[key]. The key is hashed, and the characters of a string are counted.
fn item(state: &State, value: Value, key: Value) -> Result<Value, Error> {
    charge_for(state, &key, 1)?;
    if value.as_str().is_some() {
        charge_for(state, &value, 1)?;
    }
    value.get_item(&key)
}

fn charge(state: &State, value: Value) -> Result<Value, Error> {
    charge_for(state, &value, 1)?;
    Ok(value)
}

/// A dict literal. Its keys are hashed, so they are paid for before it exists.
fn map(state: &State, items: Rest<Value>) -> Result<Value, Error> {
    for pair in items.chunks_exact(2) {
        charge_for(state, &pair[0], 1)?;
    }
    let pairs = items
        .chunks_exact(2)
        .map(|pair| (pair[0].clone(), pair[1].clone()));
    guard(state, Value::from_pairs(pairs))
}

fn slice_bound(value: &Value) -> Result<Option<i64>, Error> {
    if value.is_none() {
        return Ok(None);
    }
    i64::try_from(value.clone())
        .map(Some)
        .map_err(|_| invalid("slice indices must be integers or None"))
}

/// The indices of a Python slice of something `len` long (CPython, PySlice_AdjustIndices).
fn slice_indices(
    len: usize,
    start: Option<i64>,
    stop: Option<i64>,
    step: i64,
) -> impl Iterator<Item = usize> {
    let len = len as i64;
    let (lowest, highest) = if step < 0 { (-1, len - 1) } else { (0, len) };
    let clamp = |index: i64| {
        let from_end = if index < 0 {
            index.saturating_add(len)
        } else {
            index
        };
        from_end.clamp(lowest, highest)
    };
    let (first, last) = if step < 0 {
        (highest, lowest)
    } else {
        (lowest, highest)
    };
    let start = start.map_or(first, clamp);
    let stop = stop.map_or(last, clamp);
    let mut at = Some(start);
    std::iter::from_fn(move || {
        let index = at?;
        let inside = if step < 0 { index > stop } else { index < stop };
        at = index.checked_add(step);
        inside.then_some(index as usize)
    })
}

fn slice_text(text: &str, start: Option<i64>, stop: Option<i64>, step: i64) -> String {
    if text.is_ascii() {
        let bytes = text.as_bytes();
        return slice_indices(bytes.len(), start, stop, step)
            .map(|index| char::from(bytes[index]))
            .collect();
    }
    let characters: Vec<char> = text.chars().collect();
    slice_indices(characters.len(), start, stop, step)
        .map(|index| characters[index])
        .collect()
}

/// value[start:stop:step] for strings, lists and tuples, as Python has it.
fn slice(
    state: &State,
    value: Value,
    start: Value,
    stop: Value,
    step: Value,
) -> Result<Value, Error> {
    let start = slice_bound(&start)?;
    let stop = slice_bound(&stop)?;
    let step = slice_bound(&step)?.unwrap_or(1);
    if step == 0 {
        return Err(invalid("slice step cannot be zero"));
    }
    if let Some(text) = value.as_str() {
        state.consume_fuel((text.len() / BYTES_PER_STEP) as u64)?;
        return Ok(Value::from(slice_text(text, start, stop, step)));
    }
    if !matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("a value of type {} cannot be sliced", value.kind()),
        ));
    }
    let is_tuple = value.is_tuple();
    let list = materialized(value)?;
    let items: Vec<Value> = list.try_iter()?.collect();
    let picked: Vec<Value> = slice_indices(items.len(), start, stop, step)
        .map(|index| items[index].clone())
        .collect();
    let result = if is_tuple {
        Value::from(Tuple::from(picked))
    } else {
        Value::from(picked)
    };
    guard(state, result)
}

/// Wraps a filter that reads its input as a whole (compares, hashes or prints it): sorting reads
/// it about log2(n) times, and what the other arguments hold is read once for each item.
fn add_charged(environment: &mut Environment<'static>, name: &'static str, filter: Value) {
    let charged = move |state: &mut State, arguments: Rest<ValueOrKwargs>| {
        let arguments = arguments.into_values();
        let items = arguments.first().and_then(Value::len).unwrap_or(1);
        for (index, argument) in arguments.iter().enumerate() {
            let times = if index == 0 {
                items.checked_ilog2().unwrap_or(0) as usize + 1
            } else {
                items
            };
            charge_for(state, argument, times)?;
        }
        filter.call(state, &arguments)
    };
    environment.add_filter(name, charged);
}

/// Lists are repeated lazily, so the compiler folds `[1] * 90000000` into a constant and compares
/// such constants for free. source.rs sends one operand through this, which keeps it a variable.
fn same(value: Value) -> Value {
    value
}

pub fn install(environment: &mut Environment<'static>) {
    // Jinja2 does not have it, and it makes lazy lists and dicts of its like.
    environment.remove_filter("chain");
    environment.add_filter(SAME, same);
    environment.add_function(GUARD, guard);
    environment.add_function(GUARD_STORED, guard_stored);
    environment.add_function(CHARGE, charge);
    environment.add_function(ITEM, item);
    environment.add_function(SLICE, slice);
    environment.add_function(MAP, map);
    for (name, filter) in [
        ("sort", Value::from_function(filters::sort)),
        ("unique", Value::from_function(filters::unique)),
        ("min", Value::from_function(filters::min)),
        ("max", Value::from_function(filters::max)),
        ("groupby", Value::from_function(filters::groupby)),
        ("dictsort", Value::from_function(filters::dictsort)),
        ("pprint", Value::from_function(filters::pprint)),
        ("join", Value::from_function(filters::join)),
        ("select", Value::from_function(filters::select)),
        ("reject", Value::from_function(filters::reject)),
        ("selectattr", Value::from_function(filters::selectattr)),
        ("rejectattr", Value::from_function(filters::rejectattr)),
    ] {
        add_charged(environment, name, filter);
    }
}

#[cfg(test)]
mod tests {
    use super::slice_indices;

    fn picked(len: usize, start: Option<i64>, stop: Option<i64>, step: i64) -> Vec<usize> {
        slice_indices(len, start, stop, step).collect()
    }

    #[test]
    fn slices_are_pythons() {
        assert_eq!(picked(4, Some(1), None, 1), [1, 2, 3]);
        assert_eq!(picked(4, None, None, -1), [3, 2, 1, 0]);
        assert_eq!(picked(4, Some(-2), None, 1), [2, 3]);
        assert_eq!(picked(4, None, Some(-1), 2), [0, 2]);
        assert_eq!(picked(4, Some(2), Some(0), -1), [2, 1]);
        assert_eq!(picked(4, Some(i64::MIN), Some(i64::MAX), i64::MAX), [0]);
        assert_eq!(picked(4, Some(i64::MAX), Some(i64::MIN), i64::MIN), [3]);
        assert_eq!(picked(0, None, None, -1), [0usize; 0]);
        assert_eq!(picked(3, Some(7), Some(9), 1), [0usize; 0]);
    }
}
