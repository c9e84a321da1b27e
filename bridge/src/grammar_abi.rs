//! The C interface of grammars, declared in include/kun_bridge.h.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::slice;
use std::sync::Arc;

use crate::grammar::{Grammar, Kind, Limits, Source, State, Vocabulary};
use crate::template::Failure;
use crate::{guarded, OwnedString, View};

#[repr(C)]
pub struct Tokens {
    bytes: *const u8,
    offsets: *const u32,
    special: *const u8,
    count: usize,
}

#[repr(C)]
pub struct GrammarSource {
    kind: i32,
    text: View,
    schemas: *const View,
    schema_count: usize,
    whitespace: View,
    compact: i32,
    no_additional_properties: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct GrammarLimits {
    compile_steps_max: u64,
    mask_steps_max: u64,
    symbols_max: u64,
    lexer_states_max: u64,
}

const ENGINE: &str = "the grammar engine";

fn narrow(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

/// # Safety
/// `tokens` must describe readable memory: count + 1 ascending offsets into bytes, count flags.
#[no_mangle]
pub unsafe extern "C" fn kun_vocabulary_create(
    tokens: *const Tokens,
    handle: *mut *mut Vocabulary,
    error: *mut OwnedString,
) -> i32 {
    let (tokens, handle) = (&*tokens, &mut *handle);
    guarded(&mut *error, ENGINE, || {
        if tokens.count == 0 {
            return Err(Failure::Refused("the vocabulary is empty".into()));
        }
        let offsets = slice::from_raw_parts(tokens.offsets, tokens.count + 1);
        let special = slice::from_raw_parts(tokens.special, tokens.count);
        let size = offsets[tokens.count] as usize;
        let bytes = match size {
            0 => &[],
            _ => slice::from_raw_parts(tokens.bytes, size),
        };
        let words = offsets
            .windows(2)
            .map(|pair| &bytes[pair[0] as usize..pair[1] as usize]);
        let words = words.zip(special.iter().map(|flag| *flag != 0));
        let vocabulary = Vocabulary::new(words, tokens.count).map_err(Failure::Refused)?;
        *handle = Box::into_raw(Box::new(vocabulary));
        Ok(String::new())
    })
}

/// # Safety
/// `handle` must come from kun_vocabulary_create and not be used again. Null is fine.
#[no_mangle]
pub unsafe extern "C" fn kun_vocabulary_free(handle: *mut Vocabulary) {
    if !handle.is_null() {
        drop(Box::from_raw(handle));
    }
}

/// # Safety
/// `vocabulary` must be alive, `source` and its views readable, `handle` and `error` writable.
#[no_mangle]
pub unsafe extern "C" fn kun_grammar_compile(
    vocabulary: *const Vocabulary,
    source: *const GrammarSource,
    limits: GrammarLimits,
    handle: *mut *const Grammar,
    error: *mut OwnedString,
) -> i32 {
    let (vocabulary, source, handle) = (&*vocabulary, &*source, &mut *handle);
    guarded(&mut *error, ENGINE, || {
        let kind = match source.kind {
            0 => Kind::Json,
            1 => Kind::Regex,
            2 => Kind::Lark,
            _ => return Err(Failure::Refused("there is no such kind of grammar".into())),
        };
        let views = match source.schema_count {
            0 => &[],
            count => slice::from_raw_parts(source.schemas, count),
        };
        let schemas: Result<Vec<&str>, Failure> =
            views.iter().map(|view| view.text("the schema")).collect();
        let source = Source {
            kind,
            text: source.text.text("the grammar")?,
            schemas: schemas?,
            compact: source.compact != 0,
            whitespace: source.whitespace.text("whitespace_pattern")?,
            no_additional_properties: source.no_additional_properties != 0,
        };
        let limits = Limits {
            compile_steps_max: limits.compile_steps_max,
            mask_steps_max: limits.mask_steps_max,
            symbols_max: narrow(limits.symbols_max),
            lexer_states_max: narrow(limits.lexer_states_max),
        };
        let grammar = Grammar::compile(vocabulary, &source, limits).map_err(Failure::Refused)?;
        *handle = Arc::into_raw(Arc::new(grammar));
        Ok(String::new())
    })
}

/// # Safety
/// `grammar` must come from kun_grammar_compile.
#[no_mangle]
pub unsafe extern "C" fn kun_grammar_bytes(grammar: *const Grammar) -> usize {
    let grammar = &*grammar;
    // Poisoned by a panic: as if it were too large to keep.
    catch_unwind(AssertUnwindSafe(|| grammar.bytes())).unwrap_or(usize::MAX)
}

/// # Safety
/// `grammar` must come from kun_grammar_compile and not be used again. States outlive it.
#[no_mangle]
pub unsafe extern "C" fn kun_grammar_free(grammar: *const Grammar) {
    if !grammar.is_null() {
        drop(Arc::from_raw(grammar));
    }
}

/// # Safety
/// `grammar` must come from kun_grammar_compile. Null is returned after a panic.
#[no_mangle]
pub unsafe extern "C" fn kun_grammar_state_create(grammar: *const Grammar) -> *mut State {
    let body = || {
        Arc::increment_strong_count(grammar);
        let shared = Arc::from_raw(grammar);
        Box::into_raw(Box::new(shared.state()))
    };
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(std::ptr::null_mut())
}

/// # Safety
/// `state` must be alive. Null is returned after a panic.
#[no_mangle]
pub unsafe extern "C" fn kun_grammar_state_clone(state: *const State) -> *mut State {
    let state = &*state;
    let body = || Box::into_raw(Box::new(state.clone()));
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(std::ptr::null_mut())
}

/// # Safety
/// `state` must be alive and used by nobody else meanwhile; `bits` must be `word_count` words.
#[no_mangle]
pub unsafe extern "C" fn kun_grammar_state_mask(
    state: *mut State,
    bits: *mut u32,
    word_count: usize,
    error: *mut OwnedString,
) -> i32 {
    let (state, bits) = (&mut *state, slice::from_raw_parts_mut(bits, word_count));
    guarded(&mut *error, ENGINE, || {
        state
            .mask(bits)
            .map(|()| String::new())
            .map_err(Failure::Exhausted)
    })
}

/// # Safety
/// `state` must be alive and used by nobody else meanwhile.
#[no_mangle]
pub unsafe extern "C" fn kun_grammar_state_consume(
    state: *mut State,
    token: u32,
    error: *mut OwnedString,
) -> i32 {
    let state = &mut *state;
    guarded(&mut *error, ENGINE, || {
        state
            .consume(token)
            .map(|()| String::new())
            .map_err(Failure::Refused)
    })
}

/// # Safety
/// As for kun_grammar_state_consume.
#[no_mangle]
pub unsafe extern "C" fn kun_grammar_state_rollback(
    state: *mut State,
    count: usize,
    error: *mut OwnedString,
) -> i32 {
    let state = &mut *state;
    guarded(&mut *error, ENGINE, || {
        state
            .rollback(count)
            .map(|()| String::new())
            .map_err(Failure::Refused)
    })
}

/// # Safety
/// As for kun_grammar_state_consume. 0: goes on; 1: may end; 2: has ended.
#[no_mangle]
pub unsafe extern "C" fn kun_grammar_state_end(state: *mut State) -> i32 {
    let state = &mut *state;
    let body = || match (state.has_ended(), state.is_accepting()) {
        (true, _) => 2,
        (false, accepting) => i32::from(accepting),
    };
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(0)
}

/// # Safety
/// `state` must not be used again. Null is fine.
#[no_mangle]
pub unsafe extern "C" fn kun_grammar_state_free(state: *mut State) {
    if !state.is_null() {
        drop(Box::from_raw(state));
    }
}
